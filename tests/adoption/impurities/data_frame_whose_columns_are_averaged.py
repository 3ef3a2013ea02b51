# carried

import pandas as pd
import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


table = pd.DataFrame({"a": pd.Series(dtype=float), "b": pd.Series(dtype=float)})
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(60):
        loss = step.run(loss_fn)
        table.loc[len(table)] = [loss, 1 / 3 * loss]
        optimizer.param_groups[0]["lr"] = 0.01 * float(table.mean().sum())
print("kept", loss.hex(), table.mean().sum().hex())
