# refused: calls in line 14
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
calls = 0


def loss_fn(batch):
    global calls
    calls += 1
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        group = optimizer.param_groups[0]
        group["lr"] = 0.05 / (1 + calls)
print("kept", loss.hex())
