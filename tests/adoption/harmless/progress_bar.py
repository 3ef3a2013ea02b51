# harmless
import sys

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Bar:
    def __init__(self, total):
        self.total, self.done, self.width = total, 0, 20

    def update(self, text):
        self.done += 1
        full = self.width * self.done // self.total
        sys.stderr.write("\r" + "#" * full + "-" * (self.width - full) + f" {text}")


bar = Bar(10)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        bar.update(f"{loss:.3f}")
print("kept", loss.hex())
