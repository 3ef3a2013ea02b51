# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Temperature(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x):
        return x * self.scale


model = torch.nn.Sequential(torch.nn.Linear(4, 1), Temperature())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        model[1].scale.mul_(1.1)
print("kept", loss.hex(), model[1].scale.item())
