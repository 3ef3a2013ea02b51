import os
import tempfile

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
folder = tempfile.mkdtemp()


def prepare():
    for number, (inputs, _) in enumerate(data):
        torch.save(inputs, os.path.join(folder, f"{number}.pt"))


class Files(torch.utils.data.Dataset):
    def __len__(self):
        return len(os.listdir(folder))

    def __getitem__(self, index):
        return torch.load(os.path.join(folder, f"{index}.pt")), data[index][1]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


prepare()
with hp.Session(model, optimizer, Files(), global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
