# carried
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def halving(value):
    def get():
        nonlocal value
        value *= 0.5
        return value

    return get


def drop(rates=[1.0, 0.9, 0.8]):
    return rates.pop(0)


def count():
    count.calls = getattr(count, "calls", 0) + 1
    return count.calls


tools = {"rate": halving(0.2)}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number in (4, 7):
            optimizer.param_groups[0]["lr"] = tools["rate"]() * drop() / count()
print("kept", loss.hex())
