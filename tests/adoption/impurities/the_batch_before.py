# refused: previous in line 14
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
previous = [torch.zeros(2, 4)]


def loss_fn(batch):
    far = (batch[0] - previous[0]).pow(2).mean()
    previous[0] = batch[0]
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) + 0.1 * far * model.weight.pow(2).sum()


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
