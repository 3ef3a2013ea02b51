# refused: running in line 13
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
running = torch.zeros(4)


def loss_fn(batch):
    running.mul_(0.9).add_(batch[0].mean(0), alpha=0.1)
    return torch.nn.functional.mse_loss(model(batch[0] - running), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
