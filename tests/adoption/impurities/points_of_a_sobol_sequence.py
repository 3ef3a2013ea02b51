# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
points = torch.quasirandom.SobolEngine(4, scramble=True, seed=3)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) + 0.1 * model(drawn).pow(2).mean()


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        drawn = points.draw(8)
        loss = step.run(loss_fn)
print("kept", loss.hex())
