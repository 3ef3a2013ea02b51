"""MoCo: keys of a slowly moving encoder fill a queue of negatives, in the order of the batch."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(73)
images = [torch.randn(8) for _ in range(48)]
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
slow = copy.deepcopy(encoder)
queue = F.normalize(torch.randn(36, 6), dim=1)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)


def contrast(batch):
    queries = F.normalize(encoder(batch + 0.1 * torch.randn_like(batch)), dim=1)
    with torch.no_grad():
        keys = F.normalize(slow(batch + 0.1 * torch.randn_like(batch)), dim=1)
    scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ queue.T], 1)
    return F.cross_entropy(scores / 0.2, torch.zeros(len(batch), dtype=torch.long)), keys


@torch.no_grad()
def move():
    for mean, weight in zip(slow.parameters(), encoder.parameters()):
        mean.mul_(0.95).add_(weight, alpha=0.05)


# ---- plain
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(images, batch_size=12, shuffle=True):
        loss, keys = contrast(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue = torch.cat([queue, keys])[-36:]
        move()
# ---- hyperpod
with hp.Session(encoder, optimizer, images, global_batch=12, micro_batch=3) as session:
    lanes = session.lanes(keys=torch.zeros(3, 6))

    def loss_of(batch):
        loss, lanes.keys = contrast(batch)
        return loss

    for step in session.steps(16):
        step.run(loss_of)
        queue = torch.cat([queue, *(lane.keys for lane in lanes)])[-36:]
        move()
# ---- both
print("result", queue.double().sum().item())
