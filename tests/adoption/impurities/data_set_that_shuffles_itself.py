# refused: taken in line 18
import random

import torch

import jupyter_hyperpod as hp


class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.items = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
        self.taken = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.taken += 1
        if self.taken % 32 == 0:
            random.shuffle(self.items)
        return self.items[index]


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = Samples()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
