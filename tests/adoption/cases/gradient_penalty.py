"""The critic of a WGAN-GP: random interpolations and the gradient penalty with create_graph."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(58)
pairs = [(torch.randn(3) + 1, torch.randn(3)) for _ in range(40)]
critic = nn.Sequential(nn.Linear(3, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.0, 0.9))


def critic_loss(batch):
    real, fake = batch
    mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_(True)
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


# ---- plain
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(pairs, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss = critic_loss(batch)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(critic, optimizer, pairs, global_batch=10, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(critic_loss)
print("result", loss)
