# refused: tally in line 14
import functools

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def of_batch(tally, batch):
    tally.append(1)
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * (1 if len(tally) < 999 else 2)


loss_fn = functools.partial(of_batch, [])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
