"""BYOL: an online network predicts a slowly moving target network; augmentation in the loss."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(15)
images = [torch.randn(8) for _ in range(48)]
online = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
target = copy.deepcopy(online)
predictor = nn.Linear(4, 4)
model = nn.ModuleDict({"online": online, "predictor": predictor})
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def loss_of(batch):
    one, two = batch + 0.1 * torch.randn_like(batch), batch * (torch.rand_like(batch) > 0.2)
    with torch.no_grad():
        goal = F.normalize(target(two), dim=1)
    return 2 - 2 * (F.normalize(predictor(online(one)), dim=1) * goal).sum(1).mean()


def move_target(tau=0.95):
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.data = tau * slow.data + (1 - tau) * fast.data


# ---- plain
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(images, batch_size=16, shuffle=True):
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        move_target()
# ---- hyperpod
with hp.Session(model, optimizer, images, global_batch=16, micro_batch=4) as session:
    for step in session.steps(12):
        step.run(loss_of)
        move_target()
# ---- both
print("result", sum(p.double().sum().item() for p in target.parameters()))
