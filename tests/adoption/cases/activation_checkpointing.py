"""Activation checkpointing with dropout inside, AdamW."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import jupyter_hyperpod as hp

torch.manual_seed(13)
x = torch.randn(48, 8)
data = torch.utils.data.TensorDataset(x, x.flip(1))
layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4))
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def loss_of(batch):
    hidden, targets = batch
    for layer in layers:
        hidden = checkpoint(layer, hidden, use_reentrant=False)
    return nn.functional.mse_loss(hidden, targets)


# ---- plain
for epoch in range(3):
    for batch in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(layers, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(12):
        loss = step.run(loss_of)
print("result", loss)
