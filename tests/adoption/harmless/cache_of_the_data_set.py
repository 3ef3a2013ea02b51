# harmless
import torch

import jupyter_hyperpod as hp


class Cached(torch.utils.data.Dataset):
    def __init__(self):
        self.kept = {}

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = torch.full((4,), index / 32)
        return self.kept[index], torch.ones(1)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = Cached()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
