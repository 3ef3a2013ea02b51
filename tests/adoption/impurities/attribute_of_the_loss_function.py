# refused: calls in line 12
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    loss_fn.calls += 1
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * (1 if loss_fn.calls < 10_000 else 0)


loss_fn.calls = 0

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
