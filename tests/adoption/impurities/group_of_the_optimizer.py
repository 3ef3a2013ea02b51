# carried
import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
head = {"params": model[2].parameters(), "lr": 0.02}
optimizer = torch.optim.SGD([{"params": model[0].parameters()}, head], lr=0.05, momentum=0.5)


def made():
    g = torch.Generator().manual_seed(3)  # of the name that a group has below
    return [(torch.randn(4, generator=g), torch.randn(1, generator=g)) for _ in range(32)]


def ramp():
    ramp.count += 1
    return 0.05 / (1 + 0.02 * ramp.count)


ramp.count = 0
data = made()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        if step.number == 2:
            last = optimizer.param_groups[1]
        loss = step.run(loss_fn)
        for g in optimizer.param_groups:
            g["lr"] = ramp()
        if step.number > 6:
            last["momentum"] *= 0.9
print("kept", loss.hex(), [(g["lr"], g["momentum"]) for g in optimizer.param_groups])
