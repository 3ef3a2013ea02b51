# refused: path in line 29
import os
import tempfile

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def train():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "best.pt")
        torch.save(model.state_dict(), path)
        best = float("inf")
        with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
            for epoch in session.epochs(3):
                for step in session.steps(4):
                    loss = step.run(loss_fn)
                if loss < best and epoch < 1:
                    best = loss
                    torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path))


train()
print("kept", model.weight)
