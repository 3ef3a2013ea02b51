"""Features are computed once and cached, in a dictionary, with lru_cache and on disk-like storage: harmless caches."""

import functools

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(72)
raw = [float(i) for i in range(48)]
cache = {}


@functools.lru_cache(maxsize=None)
def slow_feature(value):
    return value**0.5, value % 7


class Cached(torch.utils.data.Dataset):
    def __len__(self):
        return len(raw)

    def __getitem__(self, index):
        if index not in cache:
            cache[index] = torch.tensor([*slow_feature(raw[index]), raw[index] / 48])
        return cache[index], cache[index].sum()


model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Cached(), batch_size=12, shuffle=True)

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
