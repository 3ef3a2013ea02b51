# harmless
from collections import Counter, defaultdict, deque

import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
sizes, rates, norms, newest = [], [], [], deque(maxlen=8)
history, kinds = defaultdict(list), Counter()


def loss_fn(batch):
    x, y = batch
    sizes.append(len(x))
    rates.append(optimizer.param_groups[0]["lr"])
    norms.append(x.norm())
    newest.append(float(y.sum()))
    history["size"].append(len(x))
    kinds.update([len(x)])
    assert len(sizes) < 1000
    return torch.nn.functional.mse_loss(model(x), y)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if len(sizes) > 3:
            print(sum(sizes) / len(sizes))
            sizes.clear()
        if not all(map(torch.isfinite, norms)):
            raise ValueError("not finite")
print("kept", loss.hex())
