# refused: stream in line 29
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Source:
    def __init__(self):
        self.stream = iter(range(1, 1000))

    def draw(self):
        return next(self.stream)


source = Source()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        optimizer.param_groups[0]["lr"] = 0.1 / source.draw()
print("kept", loss.hex())
