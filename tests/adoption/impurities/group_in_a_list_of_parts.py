# refused: seen in line 17
import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
parts = []
parts.append(optimizer.param_groups[0])
seen = 0


def loss_fn(batch):
    x, y = batch
    global seen
    seen += 1
    return torch.nn.functional.mse_loss(model(x), y)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        for part in parts:
            part["lr"] = 0.05 / (1 + seen)
print("kept", loss.hex())
