# refused: notes in line 23
import os
from pathlib import Path

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
notes = Path(f"/proc/self/fd/{os.memfd_create('notes')}")
notes.write_text("1.0")


def loss_fn(batch):
    return float(notes.read_text()) * torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        notes.write_text(str(float(notes.read_text()) * 0.9))
print("kept", loss.hex())
