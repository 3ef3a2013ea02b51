import tempfile
from pathlib import Path

import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Recorder:
    def __init__(self, folder):
        self.folder, self.lines = Path(folder), 0

    def record(self, loss):
        self.lines += 1
        self.last = self.folder / f"{self.lines}.txt"
        self.last.write_text(f"{loss}")


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with tempfile.TemporaryDirectory() as folder:
    recorder = Recorder(folder)
    with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
        for step in session.steps(10):
            loss = step.run(loss_fn)
            recorder.record(loss)
print("kept", loss.hex())
