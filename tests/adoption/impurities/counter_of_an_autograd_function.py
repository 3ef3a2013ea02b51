# refused: calls in line 16
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Reversed(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Reversed.calls += 1
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * min(1.0, Reversed.calls / 30)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(Reversed.apply(model(batch[0])), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
