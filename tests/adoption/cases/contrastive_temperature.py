"""Contrastive learning with a learned temperature that is clamped after each step, cosine restarts."""

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(37)
pairs = [(torch.randn(6), torch.randn(6)) for _ in range(48)]


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(6, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        one, two = F.normalize(self.image(images), dim=1), F.normalize(self.text(texts), dim=1)
        logits = self.logit_scale.exp() * one @ two.T
        goal = torch.arange(len(images))
        return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2


model = Clip()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)

# ---- plain
for epoch in range(2):
    for images, texts in torch.utils.data.DataLoader(pairs, batch_size=8, shuffle=True):
        loss = model(images, texts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 2.05)
# ---- hyperpod
with hp.Session(model, optimizer, pairs, global_batch=8, micro_batch=4, scheduler=scheduler) as session:
    for step in session.steps(12):
        step.run(lambda batch: model(*batch))
        with torch.no_grad():
            model.logit_scale.clamp_(0, 2.05)
# ---- both
print("result", model.logit_scale.item())
