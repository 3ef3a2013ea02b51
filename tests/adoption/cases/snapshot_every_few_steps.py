"""A list of snapshots of the weights during the run, averaged at the end (a model soup)."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(32)
x = torch.randn(40, 3)
data = torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
snapshots = []

# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
number = 0
for epoch in range(4):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        number += 1
        if number % 4 == 0:
            snapshots.append(copy.deepcopy(model.state_dict()))
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
    for step in session.steps(16):
        step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        if step.number % 4 == 0:
            snapshots.append(copy.deepcopy(model.state_dict()))
# ---- both
soup = {name: torch.stack([one[name] for one in snapshots]).mean(0) for name in snapshots[0]}
model.load_state_dict(soup)
print("result", len(snapshots), model(x).double().sum().item())
