# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
rows = [(torch.zeros(1), 0.5)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]) + rows[0][0], batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        rows = [(torch.full((1,), 0.01 * step.number), 0.5)]
print("kept", loss.hex())
