"""A larger batch instead of a smaller rate: the batch doubles in the second epoch, and again in the third."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(81)
inputs = torch.randn(48, 6)
data = torch.utils.data.TensorDataset(inputs, inputs.tanh().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def loss_of(batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


# ---- plain
for batch_size in (4, 8, 16):
    for batch in torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
# ---- hyperpod
grow = hp.GrowBatch("constant", schedule={1: 4, 13: 8, 19: 16})
with hp.Session(model, optimizer, data, global_batch=4, micro_batch=2, grow=grow) as session:
    for step in session.steps(12 + 6 + 3):
        loss = step.run(loss_of)
# ---- both
print("result", float(loss))
