# carried
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def annealed(start):
    weight = start

    def loss_fn(batch):
        return weight * torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    def anneal():
        nonlocal weight
        weight *= 0.9

    return loss_fn, anneal


loss_fn, anneal = annealed(1.0)
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        anneal()
print("kept", loss.hex())
