"""A line of CSV per step, written where session.is_main; the mean of the losses is printed at the end."""

import csv
import tempfile

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(60)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
log = tempfile.TemporaryFile("w", newline="")
writer = csv.writer(log)
writer.writerow(["step", "loss"])
total = 0.0

# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
for epoch in range(3):
    for number, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.writerow([number, loss.item()])
        total += loss.item()
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        if session.is_main:
            writer.writerow([step.number, loss])
        total += loss
# ---- both
log.close()
print("result", total / 12)
