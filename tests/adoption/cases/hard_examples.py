"""Weights of the samples inside the data set, raised between the epochs for those that the model gets wrong."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(71)


class Weighted(torch.utils.data.Dataset):
    def __init__(self, count=48):
        self.x = torch.randn(count, 4)
        self.y = (self.x.prod(1) > 0).long()
        self.weights, self.difficulty = torch.ones(count), 0.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] * (1 + self.difficulty), self.y[index], self.weights[index]

    def emphasise(self, wrong):
        self.weights[wrong] *= 1.5
        self.difficulty += 0.1


data = Weighted()
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def loss_of(batch):
    return (nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none") * batch[2]).mean()


def wrong():
    with torch.no_grad():
        return model(data.x).argmax(1) != data.y


# ---- plain
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
    data.emphasise(wrong())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            step.run(loss_of)
        data.emphasise(wrong())
# ---- both
print("result", data.weights.sum().item(), data.difficulty)
