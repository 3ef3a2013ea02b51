"""LBFGS on all of the data, whose step takes a closure that computes the loss several times."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(44)
x = torch.randn(32, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).sin())
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.MSELoss()
# ---- plain
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
for epoch in range(12):

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(data.tensors[0]), data.tensors[1])
        loss.backward()
        return loss

    loss = optimizer.step(closure).item()
# ---- hyperpod
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=1)
with hp.Session(model, [optimizer] * 4, data, global_batch=32, micro_batch=4) as session:
    for step in session.steps(12):
        loss = [step.run(lambda batch: criterion(model(batch[0]), batch[1])) for _ in range(4)][0]
# ---- both
print("result", loss)
