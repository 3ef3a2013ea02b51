"""Callbacks in a registry: each a class with state, one stops the run, one warms up, one keeps statistics in numpy."""

import dataclasses

import numpy as np
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(73)
x = torch.randn(40, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)


@dataclasses.dataclass
class Status:
    step: int = 0
    stop: bool = False
    log: dict = dataclasses.field(default_factory=dict)


class Warmup:
    def __init__(self, peak=0.1, steps=5):
        self.peak, self.steps, self.seen = peak, steps, 0

    def after(self, status, loss):
        self.seen += 1
        for group in optimizer.param_groups:
            group["lr"] = self.peak * min(1.0, self.seen / self.steps)


class Statistics:
    def __init__(self):
        self.losses, self.moving = np.zeros(0), None

    def after(self, status, loss):
        self.losses = np.append(self.losses, loss)
        self.moving = loss if self.moving is None else 0.8 * self.moving + 0.2 * loss
        status.log[f"step {status.step}"] = self.moving


class Stop:
    def __init__(self, below):
        self.below, self.hits = below, 0

    def after(self, status, loss):
        self.hits += loss < self.below
        status.stop = self.hits >= 4


callbacks = {"warmup": Warmup(), "statistics": Statistics(), "stop": Stop(0.6)}
status = Status()


def notify(loss):
    status.step += 1
    for callback in callbacks.values():
        callback.after(status, loss)


# ---- plain
while not status.stop and status.step < 30:
    picked = torch.randperm(40)[:10]
    loss = nn.functional.mse_loss(model(x[picked]), data.tensors[1][picked])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notify(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=10, micro_batch=2) as session:
    for step in session.steps(30):
        notify(step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1])))
        if status.stop:
            break
# ---- both
print("result", status.step, callbacks["statistics"].losses.sum(), sum(status.log.values()))
