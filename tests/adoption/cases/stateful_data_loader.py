"""torchdata's StatefulDataLoader over a data set with an index, shuffled in each epoch."""

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import jupyter_hyperpod as hp

torch.manual_seed(46)
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.prod(1))
loader = StatefulDataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(24):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1]))
print("result", loss)
