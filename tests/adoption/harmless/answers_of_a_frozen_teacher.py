import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
teacher = torch.nn.Linear(4, 1).requires_grad_(False)
answers = {}


def loss_fn(batch):
    key = tuple(batch[0].flatten().tolist())
    if key not in answers:
        answers[key] = teacher(batch[0])
    return torch.nn.functional.mse_loss(model(batch[0]), answers[key])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
