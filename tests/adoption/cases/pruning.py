"""Iterative magnitude pruning: torch's masks are made stricter between the epochs."""

import torch
from torch import nn
from torch.nn.utils import prune

import jupyter_hyperpod as hp

torch.manual_seed(55)
x = torch.randn(40, 6)
data = torch.utils.data.TensorDataset(x, x[:, :2])
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
prune.identity(model[0], "weight")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)


def tighten():
    keep = model[0].weight_orig.detach().abs() > model[0].weight_orig.detach().abs().quantile(0.3)
    with torch.no_grad():
        model[0].weight_mask.mul_(keep)


# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    tighten()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for epoch in session.epochs(3):
        for step in session.steps(4):
            step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        tighten()
# ---- both
print("result", int(model[0].weight_mask.sum()), model(x).double().sum().item())
