"""ReduceLROnPlateau on the mean loss of each epoch, and a history of learning rates."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(6)
x = torch.randn(36, 3)
data = torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
rates = []

# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
for epoch in range(6):
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step(total / 3)
    rates.append(optimizer.param_groups[0]["lr"])
# ---- hyperpod
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for epoch in session.epochs(6):
        total = 0.0
        for step in session.steps(3):
            total += step.run(lambda batch: nn.functional.l1_loss(model(batch[0]), batch[1]))
        scheduler.step(total / 3)
        rates.append(optimizer.param_groups[0]["lr"])
# ---- both
print("result", rates)
