"""A loss function that counts its calls and scales by the count."""
# refused: calls.*line|line.*calls

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(43)
x = torch.randn(32, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
calls = 0


def loss_of(batch):
    global calls
    calls += 1
    return nn.functional.mse_loss(model(batch[0]), batch[1]) / (1 + 0.01 * calls)


# ---- plain
for batch in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = loss_of(batch)
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(4):
        loss = step.run(loss_of)
print("result", loss)
