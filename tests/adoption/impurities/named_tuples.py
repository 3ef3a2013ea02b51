# carried
import collections

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


Stats = collections.namedtuple("Stats", "mean count")
stats, seen = Stats(0.0, 0), collections.deque(maxlen=3)
largest = torch.zeros(2).max(0)
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        stats = Stats(0.9 * stats.mean + 0.1 * loss, stats.count + 1)
        seen.append(Stats(loss, step.number))
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + stats.mean + seen[0].mean + largest.values.item())
        largest = model.weight.detach()[0].max(0)
print("kept", loss.hex())
