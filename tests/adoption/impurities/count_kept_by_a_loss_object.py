# refused: ticks in line 18
import itertools

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Loss:
    def __init__(self):
        self.ticks = itertools.count()

    def __call__(self, batch):
        warm = min(1.0, next(self.ticks) / 30)
        return warm * torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    criterion = Loss()
    for step in session.steps(10):
        loss = step.run(criterion)
print("kept", loss.hex())
