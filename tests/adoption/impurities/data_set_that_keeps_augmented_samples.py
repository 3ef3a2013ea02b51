# refused: kept in line 21
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.items = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
        self.kept = {}

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if index not in self.kept:
            x, y = self.items[index]
            self.kept[index] = x + 0.1 * torch.randn(4), y
        return self.kept[index]


data = Samples()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
