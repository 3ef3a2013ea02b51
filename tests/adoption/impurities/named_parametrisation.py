# refused: calls in line 17
from torch.nn.utils import parametrize

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Scaled(torch.nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1 if self.calls < 90 else 0.5)


parametrize.register_parametrization(model, "weight", Scaled())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
