"""Model-agnostic meta-learning: inner gradient steps by functional_call, tasks as samples."""

import torch
from torch import nn
from torch.func import functional_call

import jupyter_hyperpod as hp

torch.manual_seed(56)
tasks = [(torch.rand(()) * 3, torch.rand(()) * 3) for _ in range(40)]
net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)


def meta_loss(batch):
    losses = []
    for amplitude, phase in zip(*batch):
        points = torch.linspace(-2, 2, 8)[:, None]
        targets = amplitude * torch.sin(points + phase)
        weights = dict(net.named_parameters())
        support = nn.functional.mse_loss(functional_call(net, weights, points[::2]), targets[::2])
        gradients = torch.autograd.grad(support, list(weights.values()), create_graph=True)
        adapted = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients)}
        losses.append(nn.functional.mse_loss(functional_call(net, adapted, points[1::2]), targets[1::2]))
    return torch.stack(losses).mean()


# ---- plain
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(tasks, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = meta_loss(batch)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(net, optimizer, tasks, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(meta_loss)
print("result", loss)
