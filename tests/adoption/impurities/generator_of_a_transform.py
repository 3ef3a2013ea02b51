# refused: rng in line 13
import numpy as np
import torch

import jupyter_hyperpod as hp


class Jitter:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, x):
        return x + float(self.rng.normal()) * 0.1


class Samples(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.items = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
        self.transform = transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        x, y = self.items[index]
        return self.transform(x), y


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = Samples(Jitter())


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
