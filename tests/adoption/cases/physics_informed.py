"""A physics-informed network: second derivatives by autograd inside the loss, Adam with a decay per step."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(40)
points = [torch.rand(1) * 3 for _ in range(48)]
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)


def residual(x):
    x = x.requires_grad_(True)
    u = net(x)
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
    start = net(torch.zeros(1, 1))
    return (ddu + u).square().mean() + (start - 1).square().mean()


# ---- plain
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(points, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = residual(batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(net, optimizer, points, global_batch=12, micro_batch=3, scheduler=scheduler) as session:
    for step in session.steps(16):
        loss = step.run(residual)
print("result", loss)
