# carried

import pandas as pd
import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


losses = pd.Series(dtype=float, name="loss")
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(loss_fn)
        losses[step.number] = loss
        optimizer.param_groups[0]["lr"] = 0.01 * losses.ewm(span=3).mean().iloc[-1]
print("kept", loss.hex(), losses.sum().hex())
