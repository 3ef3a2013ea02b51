"""Lookahead: slow weights by parameter follow the fast ones; a data frame of the losses decides the learning rate."""

import pandas as pd
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(5)
x = torch.randn(60, 4)
data = torch.utils.data.TensorDataset(x, x.cos().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = pd.DataFrame({"loss": pd.Series(dtype=float), "rate": pd.Series(dtype=float)})


class Lookahead:
    def __init__(self, parameters, every=3, alpha=0.5):
        self.every, self.alpha, self.steps = every, alpha, 0
        self.slow = {weight: weight.detach().clone() for weight in parameters}

    @torch.no_grad()
    def step(self):
        self.steps += 1
        if self.steps % self.every == 0:
            for fast, slow in self.slow.items():
                fast.copy_(slow.lerp_(fast, self.alpha))


def note(loss):
    group = optimizer.param_groups[0]
    history.loc[len(history)] = [loss, group["lr"]]
    if loss > history["loss"].tail(5).mean():
        group["lr"] *= 0.9


lookahead = Lookahead(model.parameters())
# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
for epoch in range(4):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lookahead.step()
        note(loss.item())
# ---- hyperpod
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(20):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        lookahead.step()
        note(loss)
# ---- both
print("result", history["loss"].sum(), optimizer.param_groups[0]["lr"])
