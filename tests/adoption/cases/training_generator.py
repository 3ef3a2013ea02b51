"""The training is a generator that yields losses, and its consumer decides when it is enough."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(74)
x = torch.randn(40, 3)
data = torch.utils.data.TensorDataset(x, x.cos().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)


# ---- plain
def training(steps):
    smooth = None
    for _ in range(steps):
        picked = torch.randperm(40)[:10]
        loss = nn.functional.mse_loss(model(x[picked]), data.tensors[1][picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.7 * smooth + 0.3 * loss.item()
        yield smooth


# ---- hyperpod
def training(steps):
    smooth = None
    with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
        for step in session.steps(steps):
            loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
            smooth = loss if smooth is None else 0.7 * smooth + 0.3 * loss
            yield smooth


# ---- both
seen, lowest = 0, float("inf")
for value in training(16):
    seen, lowest = seen + 1, min(lowest, value)
print("result", seen, lowest)
