# refused: turns in line 20
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Clipped(torch.autograd.Function):
    turns = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Clipped.turns += 1
        return grad * (1.0 if Clipped.turns < 30 else 0.5)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(Clipped.apply(model(batch[0])), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
