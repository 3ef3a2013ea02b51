"""A while loop that asks for one step at a time until the loss is low enough."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(77)
x = torch.randn(40, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
loss_value, rounds = 9.0, 0

# ---- plain
while loss_value > 0.3 and rounds < 25:
    picked = torch.randperm(40)[:10]
    loss = nn.functional.mse_loss(model(x[picked]), data.tensors[1][picked])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_value, rounds = loss.item(), rounds + 1
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
    while loss_value > 0.3 and rounds < 25:
        for step in session.steps(1):
            loss_value = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
            rounds += 1
# ---- both
print("result", loss_value, rounds)
