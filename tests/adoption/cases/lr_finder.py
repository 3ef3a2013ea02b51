"""A learning-rate finder: the rate grows at each step, losses are kept, the loop ends when the loss explodes."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(51)
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rates, losses, best = [], [], float("inf")

# ---- plain
for number in range(40):
    picked = torch.randperm(64)[:16]
    loss = nn.functional.mse_loss(model(x[picked]), data.tensors[1][picked])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rates.append(optimizer.param_groups[0]["lr"])
    losses.append(loss.item())
    best = min(best, losses[-1])
    if losses[-1] > 4 * best:
        break
    optimizer.param_groups[0]["lr"] *= 1.4
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for step in session.steps(40):
        losses.append(step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1])))
        rates.append(optimizer.param_groups[0]["lr"])
        best = min(best, losses[-1])
        if losses[-1] > 4 * best:
            break
        optimizer.param_groups[0]["lr"] *= 1.4
# ---- both
print("result", len(rates), rates[-1], best)
