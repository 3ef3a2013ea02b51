"""Rare classes drawn more often by a WeightedRandomSampler, with noise added by two workers of the DataLoader."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(71)
labels = (torch.rand(90) < 0.15).long()
inputs = torch.randn(90, 6) + labels[:, None]


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return len(labels)

    def __getitem__(self, index):
        return inputs[index] + 0.1 * torch.randn(6), labels[index]


weights = (1.0 / labels.bincount().float())[labels]
sampler = torch.utils.data.WeightedRandomSampler(weights, len(labels))
loader = torch.utils.data.DataLoader(Noisy(), batch_size=12, sampler=sampler, num_workers=2, drop_last=True)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

# ---- plain
for epoch in range(2):
    for batch, targets in loader:
        loss = nn.functional.cross_entropy(model(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(14):
        loss = step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
print("result", loss)
