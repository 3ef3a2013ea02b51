"""A time series in order: a DataLoader that does not shuffle, Huber loss."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(63)
series = torch.sin(torch.arange(140) / 6)
windows = [(series[i : i + 8], series[i + 8]) for i in range(120)]
loader = torch.utils.data.DataLoader(windows, batch_size=12, shuffle=False)
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 1), nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

# ---- plain
for inputs, targets in loader:
    loss = nn.functional.huber_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(10):
        loss = step.run(lambda batch: nn.functional.huber_loss(model(batch[0]), batch[1]))
print("result", loss)
