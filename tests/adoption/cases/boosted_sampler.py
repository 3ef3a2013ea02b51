"""Samples with large errors are drawn more often: the sampler gets new weights after each epoch."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(82)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.prod(1, keepdim=True))
sampler = torch.utils.data.WeightedRandomSampler(torch.ones(40), 40)
loader = torch.utils.data.DataLoader(data, batch_size=10, sampler=sampler)
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)


def errors():
    with torch.no_grad():
        return (model(x) - data.tensors[1]).square().flatten().double() + 0.01


# ---- plain
for epoch in range(4):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sampler.weights = errors()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        sampler.weights = errors()
# ---- both
print("result", sampler.weights.sum().item())
