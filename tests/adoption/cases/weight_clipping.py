"""A critic whose weights are clipped after each step, as the first Wasserstein GAN does."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(31)
real, fake = torch.randn(48, 3) + 1, torch.randn(48, 3)
pairs = torch.utils.data.TensorDataset(real, fake)
critic = nn.Sequential(nn.Linear(3, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
loader = torch.utils.data.DataLoader(pairs, batch_size=12, shuffle=True)
distance = []

# ---- plain
for epoch in range(4):
    for one, other in loader:
        loss = critic(other).mean() - critic(one).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for p in critic.parameters():
            p.data.clamp_(-0.2, 0.2)
        distance.append(-loss.item())
# ---- hyperpod
with hp.Session(critic, optimizer, loader, global_batch=12, micro_batch=4) as session:
    for step in session.steps(16):
        loss = step.run(lambda batch: critic(batch[1]).mean() - critic(batch[0]).mean())
        for p in critic.parameters():
            p.data.clamp_(-0.2, 0.2)
        distance.append(-loss)
# ---- both
print("result", distance[-3:])
