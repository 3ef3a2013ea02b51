# refused: turns in line 19
import functools

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def warmed(function):
    turns = 0

    @functools.wraps(function)
    def wrapped(*given):
        nonlocal turns
        turns += 1
        return function(*given) * min(1.0, turns / 60)

    return wrapped


@warmed
def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
