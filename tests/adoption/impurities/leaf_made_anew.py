# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
probe = torch.ones(4, requires_grad=True)
samples = torch.stack([x for x, _ in data])


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0] * probe.detach()), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        (gradient,) = torch.autograd.grad(model(samples * probe).pow(2).mean(), probe)
        probe = (probe - 0.1 * gradient).detach().requires_grad_()
print("kept", loss.hex())
