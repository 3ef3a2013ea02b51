"""A stream whose samples become larger from epoch to epoch, by an attribute that the loop sets."""

import torch
from torch import nn

import jupyter_hyperpod as hp


class Growing(torch.utils.data.IterableDataset):
    level, epoch = 1.0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in range(40):
            inputs = torch.sin(torch.arange(5.0) * (number + 1)) * self.level
            yield inputs, inputs.sin().sum().view(1)


torch.manual_seed(1)
stream = Growing()
model = nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []


def mse(batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


# ---- plain
for epoch in range(6):
    stream.set_epoch(epoch)
    stream.level = 1.0 + 0.1 * epoch
    for batch in torch.utils.data.DataLoader(stream, batch_size=10):
        loss = mse(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, stream, global_batch=10, micro_batch=2) as session:
    for epoch in session.epochs(6):
        stream.level = 1.0 + 0.1 * epoch
        for step in session.steps(4):
            losses.append(step.run(mse))
# ---- both
print("result", losses)
