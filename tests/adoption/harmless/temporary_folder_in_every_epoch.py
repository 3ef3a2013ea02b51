import os
import tempfile

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(3):
        for step in session.steps(4):
            loss = step.run(loss_fn)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.pt")
            torch.save(model.state_dict(), path)
            optimizer.param_groups[0]["lr"] = 0.05 if torch.load(path)["weight"].sum() > 0 else 0.04
print("kept", loss.hex())
