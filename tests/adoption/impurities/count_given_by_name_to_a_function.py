# refused: seen in line 21
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
seen = 0


def adjust(chosen, count):
    chosen.param_groups[0]["lr"] = 0.05 / (1 + count)
    return count


def loss_fn(batch):
    global seen
    x, y = batch

    seen += 1
    return torch.nn.functional.mse_loss(model(x), y)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        shown = adjust(optimizer, count=seen)
print("kept", loss.hex())
