"""Noise is drawn from the global generators between the steps, and decides what the next step does."""

import random

import numpy as np
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(30)
random.seed(30)
np.random.seed(30)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.max(1, keepdim=True).values)
model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
scale = 1.0

# ---- plain
for epoch in range(4):
    for inputs, targets in loader:
        loss = scale * nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scale = 0.5 + random.random() + np.random.rand() * torch.rand(()).item()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for step in session.steps(16):
        step.run(lambda batch: scale * nn.functional.mse_loss(model(batch[0]), batch[1]))
        scale = 0.5 + random.random() + np.random.rand() * torch.rand(()).item()
# ---- both
print("result", scale)
