"""Rare classes are drawn more often: a DataLoader with a WeightedRandomSampler."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(62)
x = torch.randn(50, 4)
labels = (torch.arange(50) % 10 == 0).long()
data = torch.utils.data.TensorDataset(x + labels[:, None], labels)
weights = torch.where(labels == 1, 9.0, 1.0)
sampler = torch.utils.data.WeightedRandomSampler(weights, 40)
loader = torch.utils.data.DataLoader(data, batch_size=10, sampler=sampler)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
print("result", loss)
