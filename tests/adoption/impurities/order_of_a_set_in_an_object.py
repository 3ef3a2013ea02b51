# refused: self.seen in line 18
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Hardest:
    def __init__(self):
        self.seen = set()

    def first(self, number):
        self.seen.add(number * 16 % 56)
        return next(iter(self.seen))


hardest = Hardest()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + hardest.first(step.number))
print("kept", loss.hex())
