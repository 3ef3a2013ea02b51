# refused: hits_fast in line 15
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
hits_fast, kind = 0, "fast"


def loss_fn(batch):
    global hits_fast
    x, y = batch
    hits_fast += 1
    return torch.nn.functional.mse_loss(model(x), y)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + globals()[f"hits_{kind}"])
print("kept", loss.hex())
