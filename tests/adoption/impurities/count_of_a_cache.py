# refused: known.cache_info in line 20
import functools

import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@functools.lru_cache
def known(number):
    return number


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * (1.0 + known.cache_info().currsize)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number == 3:
            known(step.number)
print("kept", loss.hex())
