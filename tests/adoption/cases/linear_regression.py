"""The first loop of a tutorial: a linear model, SGD, mean squared error."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(0)
x = torch.randn(64, 3)
y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(64, 1)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# ---- plain
for step in range(12):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
data = torch.utils.data.TensorDataset(x, y)
with hp.Session(model, optimizer, data, global_batch=64, micro_batch=8) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
