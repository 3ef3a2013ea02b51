"""A small diffusion model: random time steps and noise in the loss, an EMA class, sampling at the end."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(36)
points = [torch.tensor([angle.cos(), angle.sin()]) for angle in torch.linspace(0, 6.2, 48)]
betas = torch.linspace(1e-3, 0.2, 12)
alphas = (1 - betas).cumprod(0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.net = nn.Embedding(12, 8), nn.Sequential(nn.Linear(10, 24), nn.SiLU(), nn.Linear(24, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


class EMA:
    def __init__(self, module, decay=0.95):
        self.decay, self.shadow = decay, {name: p.detach().clone() for name, p in module.named_parameters()}

    def update(self, module):
        for name, p in module.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * p.detach()


def loss_of(x0):
    t = torch.randint(12, (len(x0),))
    noise = torch.randn_like(x0)
    mixed = alphas[t, None].sqrt() * x0 + (1 - alphas[t, None]).sqrt() * noise
    return nn.functional.mse_loss(model(mixed, t), noise)


model = Denoiser()
ema = EMA(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

# ---- plain
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(points, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model)
# ---- hyperpod
with hp.Session(model, optimizer, points, global_batch=12, micro_batch=3, max_grad_norm=1.0) as session:
    for step in session.steps(16):
        step.run(loss_of)
        ema.update(model)
# ---- both
model.load_state_dict(ema.shadow)
torch.manual_seed(0)
print("result", model(torch.randn(5, 2), torch.arange(5)).double().sum().item())
