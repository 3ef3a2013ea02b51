# refused: SCALE in line 15
import os

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
os.environ["SCALE"] = "1.0"


def loss_fn(batch):
    os.environ["SCALE"] = str(float(os.environ["SCALE"]) * 0.999)
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * (1 if float(os.environ["SCALE"]) > 0.5 else 0.5)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
