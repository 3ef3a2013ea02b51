"""Hooks on parameters scale and clip their gradients; a forward hook keeps the last activations' mean."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(54)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.roll(1, 1))
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 4))
model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
model[2].weight.register_hook(lambda gradient: gradient * 0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=10) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
