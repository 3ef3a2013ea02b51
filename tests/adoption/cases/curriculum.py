"""A curriculum: the loss's noise and the share of hard samples grow while the loss falls."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(4)
x = torch.randn(48, 4)
data = torch.utils.data.TensorDataset(x, x.abs().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
difficulty, best = 0.1, float("inf")


def loss_of(batch):
    inputs, targets = batch
    noisy = inputs + difficulty * torch.randn_like(inputs)
    return nn.functional.smooth_l1_loss(model(noisy), targets)


# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(5):
    for batch in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, difficulty = loss.item(), difficulty * 1.3
# ---- hyperpod
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=4) as session:
    for step in session.steps(15):
        loss = step.run(loss_of)
        if loss < best:
            best, difficulty = loss, difficulty * 1.3
# ---- both
print("result", best, difficulty)
