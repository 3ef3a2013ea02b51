"""Counters and registries in class attributes, an enumeration of phases, and a namespace of options that change."""

import enum
from types import SimpleNamespace

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(75)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.sin())
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


class Phase(enum.Enum):
    WARM = 1
    FULL = 2


class Registry:
    losses = []
    phase = Phase.WARM
    scale = 1.0


options = SimpleNamespace(weight=0.5, changes=0)


def loss_of(batch):
    error = model(batch[0]) - batch[1]
    shape = error.abs() if Registry.phase is Phase.WARM else error.square()
    return Registry.scale * options.weight * shape.mean()


def after(loss):
    Registry.losses.append(loss)
    Registry.scale *= 0.98
    if len(Registry.losses) == 6:
        Registry.phase = Phase.FULL
    options.weight, options.changes = options.weight * 1.05, options.changes + 1


# ---- plain
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(data, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        after(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
    for step in session.steps(12):
        after(step.run(loss_of))
# ---- both
print("result", sum(Registry.losses), Registry.phase.name, options.weight, options.changes)
