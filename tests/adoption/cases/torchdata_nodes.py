"""A stream of torchdata.nodes, mapped, with its own state."""

import torch
import torchdata.nodes
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(47)
rows = torchdata.nodes.IterableWrapper([torch.sin(torch.arange(3) * (i + 1.0)) for i in range(80)])
stream = torchdata.nodes.Loader(torchdata.nodes.Mapper(rows, lambda x: (x, x.sum())), restart_on_stop_iteration=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []

# ---- plain
for batch in zip(*[iter(stream)] * 8, strict=False):
    inputs, targets = (torch.stack(column) for column in zip(*batch, strict=True))
    loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, stream, global_batch=8, micro_batch=2) as session:
    for step in session.steps(15):
        losses.append(step.run(lambda batch: nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1])))
# ---- both
print("result", losses)
