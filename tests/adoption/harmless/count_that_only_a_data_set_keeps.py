# harmless
import torch

import jupyter_hyperpod as hp


class Counting(torch.utils.data.Dataset):
    def __init__(self):
        self.hits = 0

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.hits += 1
        return torch.full((4,), index / 32), torch.ones(1)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = Counting()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
