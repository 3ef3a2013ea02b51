# carried
from pathlib import Path

import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best_path, kept = Path("none"), {}


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number == 3:
            best_path = Path("runs") / f"step-{step.number}.pt"
            kept["last"] = [Path(f"{loss:.4f}"), best_path.parent]
print("kept", loss.hex(), best_path, kept)
