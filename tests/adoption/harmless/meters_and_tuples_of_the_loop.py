# harmless
from collections import deque, namedtuple

import torch

import jupyter_hyperpod as hp

Point = namedtuple("Point", "state")


class Smoothed:
    def __init__(self):
        self.newest, self.total = deque(maxlen=20), 0.0


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
fixed, state, meters = Point(1.0), 1.0, {}


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * fixed.state * state


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        state = state * 0.9
        if "loss" not in meters:
            meters["loss"] = Smoothed()
        meters["loss"].total += loss
        print(meters["loss"].total)
print("kept", loss.hex(), meters["loss"].total.hex())
