"""A beta-VAE whose KL weight is a function of the epoch, with a Gumbel-softmax temperature that decays per step."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(52)
data = [torch.rand(10).round() for _ in range(48)]
encoder, decoder = nn.Linear(10, 6), nn.Linear(6, 10)
model = nn.ModuleList([encoder, decoder])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
beta, temperature = 0.0, 1.0


def loss_of(x):
    logits = encoder(x)
    code = F.gumbel_softmax(logits, tau=temperature)
    kl = (logits.softmax(1) * (logits.log_softmax(1) + math.log(6))).sum(1).mean()
    return F.binary_cross_entropy_with_logits(decoder(code), x) + beta * kl


# ---- plain
for epoch in range(4):
    beta = epoch / 3
    for x in torch.utils.data.DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        temperature = max(0.3, temperature * math.exp(-0.05))
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=12, micro_batch=3) as session:
    for epoch in session.epochs(4):
        beta = epoch / 3
        for step in session.steps(4):
            step.run(loss_of)
            temperature = max(0.3, temperature * math.exp(-0.05))
# ---- both
print("result", beta, temperature)
