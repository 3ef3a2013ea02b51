"""A budget that one member sees, here a number of steps that rank 0 counts: session.stop ends the loops of all."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(61)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
budget, epochs_seen, total = 9, 0, 0.0

# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
number = 0
for epoch in range(100):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        number += 1
        if number == budget + 1:
            break
    epochs_seen += 1
    if number == budget + 1:
        break
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
    for epoch in session.epochs(100):
        for step in session.steps(4):
            loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
            total += loss
            if session.is_main and step.number == budget:
                session.stop("the budget is spent")
        epochs_seen += 1
# ---- both
print("result", epochs_seen, total)
