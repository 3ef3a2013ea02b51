# refused: folder in line 19
import os
import tempfile

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Recorder:
    def __init__(self, folder):
        self.folder = folder

    def record(self, epoch):
        torch.save(model.state_dict(), os.path.join(self.folder, f"{epoch}.pt"))

    def mean(self):
        states = [torch.load(os.path.join(self.folder, name)) for name in sorted(os.listdir(self.folder))]
        return {key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]}


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


recorder = Recorder(tempfile.mkdtemp())
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(3):
        for step in session.steps(4):
            loss = step.run(loss_fn)
        recorder.record(epoch)
model.load_state_dict(recorder.mean())
print("kept", model.weight)
