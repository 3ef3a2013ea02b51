# carried
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Scale:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 1.0


scale = Scale()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(lambda batch: loss_fn(batch) * scale.value)
        scale.value *= 0.9
print("kept", loss.hex())
