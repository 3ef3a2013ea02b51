import glob
import os
import tempfile

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
folder = tempfile.mkdtemp()
out = tempfile.mkdtemp()
weights = os.path.join(out, "data", "weights.pt")
checkpoints = os.path.join(out, "checkpoints")
os.mkdir(checkpoints)
torch.save(torch.ones(4), os.path.join(folder, "scale.pt"))
os.mkdir(os.path.dirname(weights))
torch.save(torch.full((4,), 0.5), weights)


def read(path):
    return torch.load(path)


def write(path):
    torch.save(model.state_dict(), path)


def keep_newest(number):
    files = sorted(glob.glob(os.path.join(checkpoints, "*.pt")), key=os.path.getmtime)
    for old in files[:-number]:
        os.remove(old)
    while len(os.listdir(checkpoints)) > number:
        os.remove(files[0])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(3):
        scale = read(os.path.join(folder, "scale.pt")) * read(weights)
        for step in session.steps(4):
            loss = step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0] * scale), batch[1]))
        write(os.path.join(checkpoints, f"{epoch}.pt"))
        keep_newest(2)
print("kept", loss.hex())
