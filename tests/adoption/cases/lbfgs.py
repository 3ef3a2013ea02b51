"""LBFGS, whose step takes a closure that computes the loss several times."""
# refused: LBFGS

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(44)
x = torch.randn(32, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)

# ---- plain
for epoch in range(3):

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1])
        loss.backward()
        return loss

    loss = optimizer.step(closure)
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=32, micro_batch=8) as session:
    for step in session.steps(3):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
