# refused: folder in line 21
import tempfile
from pathlib import Path

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
folder = Path(tempfile.mkdtemp())


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def at_end(epoch):
    if epoch == 1:
        (folder / "late").touch()


callbacks = [at_end]
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(3):
        rate = 0.01 if (folder / "late").exists() else 0.05
        optimizer.param_groups[0]["lr"] = rate
        for step in session.steps(4):
            loss = step.run(loss_fn)
        for callback in callbacks:
            callback(epoch)
print("kept", loss.hex())
