# carried
import collections

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


class Meter:
    def __init__(self):
        self.total = 0.0

    def update(self, value):
        self.total += value


class Snapshot:
    def __init__(self, weights, loss):
        self.weights, self.loss = weights, loss


meters, best = collections.defaultdict(Meter), []
recent = collections.deque(maxlen=2)
tables = {"counts": None}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        meters["late" if step.number > 3 else "early"].update(loss)
        best.append(Snapshot({name: value.clone() for name, value in model.state_dict().items()}, loss))
        best = sorted(best, key=lambda one: one.loss)[:2]
        recent.append(best[0])
        if tables["counts"] is None and step.number == 4:
            tables["counts"] = collections.Counter()
        if step.number > 4:
            tables["counts"][step.number % 2] += 1
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + meters["late"].total + recent[0].loss)
print("kept", loss.hex(), best[1].weights["weight"].sum().item(), sorted(tables["counts"].items()))
