"""A data set with set_epoch, whose augmentation grows with the epoch, and class weights computed per epoch."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(76)


class Augmenting(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y, self.epoch = torch.randn(40, 5), torch.arange(40) % 2, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * self.epoch * torch.randn(5), self.y[index]


data = Augmenting()
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
class_weights = torch.ones(2)

# ---- plain
for epoch in range(3):
    data.set_epoch(epoch)
    class_weights = class_weights * torch.tensor([1.0, 1.1])
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets, weight=class_weights)
        loss.backward()
        optimizer.step()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=5) as session:
    for epoch in session.epochs(3):
        data.set_epoch(epoch)
        class_weights = class_weights * torch.tensor([1.0, 1.1])
        for step in session.steps(4):
            step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1], weight=class_weights))
# ---- both
print("result", class_weights.tolist(), data.epoch, model.weight.double().sum().item())
