"""Records streamed through a shuffle buffer, as an IterableDataset in a DataLoader."""

import random

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(72)
truth = torch.randn(5)


class Records(torch.utils.data.IterableDataset):
    def __iter__(self):
        buffer = []
        for index in range(100):
            buffer.append(torch.sin(torch.arange(5) * (index + 1.0)))
            if len(buffer) == 20:
                record = buffer.pop(random.randrange(20))
                yield record, record @ truth
        random.shuffle(buffer)
        for record in buffer:
            yield record, record @ truth


loader = torch.utils.data.DataLoader(Records(), batch_size=8)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

# ---- plain
for batch, targets in loader:
    loss = nn.functional.mse_loss(model(batch).squeeze(1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(15):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1]))
print("result", loss)
