"""Generator and critic under one optimizer; the critic's layers have spectral norm."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

import jupyter_hyperpod as hp

torch.manual_seed(74)
real = [torch.randn(4) * 0.5 + 1 for _ in range(48)]
critic = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 16)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(16, 1)))
model = nn.ModuleDict({"critic": critic, "generator": nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.9))


def loss_of(batch):
    fake = model["generator"](torch.randn(len(batch), 3))
    critics = F.relu(1 - critic(batch)).mean() + F.relu(1 + critic(fake.detach())).mean()
    critic.requires_grad_(False)
    generators = -critic(fake).mean()
    critic.requires_grad_(True)
    return critics + generators


# ---- plain
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(real, batch_size=12, shuffle=True):
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
# ---- hyperpod
with hp.Session(model, optimizer, real, global_batch=12, micro_batch=3) as session:
    for step in session.steps(16):
        step.run(loss_of)
# ---- both
print("result", critic[0].weight_u.double().sum().item(), critic(torch.ones(1, 4)).item())
