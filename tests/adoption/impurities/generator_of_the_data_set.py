# refused: rng in line 17
import random

import torch

import jupyter_hyperpod as hp


class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.rng = random.Random(1)

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((4,), index + self.rng.random()), torch.ones(1)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
data = Noisy()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
