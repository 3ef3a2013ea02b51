# harmless
import io
import json

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class JsonLines:
    def __init__(self, file):
        self.file, self.written = file, 0

    def write(self, **values):
        self.file.write(json.dumps(values) + "\n")
        self.written += 1


lines = JsonLines(io.StringIO())


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        lines.write(step=step.number, loss=loss)
print("kept", loss.hex())
