# carried

import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


velocity = {}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        with torch.no_grad():
            for p in model.parameters():
                v = velocity.setdefault(p, torch.zeros_like(p))
                v.mul_(0.9).add_(p, alpha=0.1)
                p.add_(v, alpha=-0.01)
print("kept", loss.hex())
