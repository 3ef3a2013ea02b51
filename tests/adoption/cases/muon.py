"""Muon for the hidden matrices, as torch.optim has it."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(21)
x = torch.randn(48, 8)
data = torch.utils.data.TensorDataset(x, x.sort(1).values)
model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 8, bias=False))
optimizer = torch.optim.Muon(model.parameters(), lr=2e-2)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
