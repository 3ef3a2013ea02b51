# carried

import pandas as pd
import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


class A:
    table = None


class B:
    table = None


a, b = A(), B()
a.table = b.table = pd.DataFrame({"x": pd.Series(dtype=float)})
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        if step.number in (3, 6):
            a.table = b.table = pd.DataFrame({"x": pd.Series(dtype=float)})
        loss = step.run(loss_fn)
        a.table.loc[len(a.table)] = [loss]
        if step.number > 7:
            optimizer.param_groups[0]["lr"] = 0.01 * len(b.table) * b.table.x.mean()
print("kept", loss.hex(), len(a.table), len(b.table), a.table is b.table)
