"""Noise is added to the weights before each step."""
# refused: changed the model before step.run

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(45)
x = torch.randn(32, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def jitter():
    with torch.no_grad():
        model.weight.add_(0.01)


# ---- plain
for batch in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
    jitter()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(4):
        jitter()
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
