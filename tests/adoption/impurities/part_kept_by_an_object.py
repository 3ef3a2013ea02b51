# refused: seen in line 27
import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Shrinker:
    def __init__(self, layer):
        self.layer = layer

    def apply(self):
        with torch.no_grad():
            self.layer.weight.mul_(1 - 1 / (100 + seen))


shrinker = Shrinker(model[0])
seen = 0


def loss_fn(batch):
    x, y = batch
    global seen
    seen += 1
    return torch.nn.functional.mse_loss(model(x), y)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        shrinker.apply()
print("kept", loss.hex())
