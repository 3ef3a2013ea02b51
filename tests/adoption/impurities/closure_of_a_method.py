# carried
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Base:
    def __init__(self):
        self.total = 0.0


class Meter(Base):
    def add(self, value):
        Base.__init__(self) if self.total > 5 else None
        self.__dict__["total"] += value


meter = Meter()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        meter.add(loss)
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + meter.total)
print("kept", loss.hex(), meter.total)
