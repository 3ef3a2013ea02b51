"""An exponential moving average of the weights, as diffusion models keep it, used for the final evaluation."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(3)
x = torch.randn(60, 4)
data = torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ema = copy.deepcopy(model).requires_grad_(False)


def update_ema(decay=0.9):
    with torch.no_grad():
        for averaged, current in zip(ema.parameters(), model.parameters()):
            averaged.mul_(decay).add_(current, alpha=1 - decay)


# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_ema()
# ---- hyperpod
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(15):
        step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        update_ema()
# ---- both
print("result", nn.functional.mse_loss(ema(x), data.tensors[1]).item())
