"""Grokking modular addition: the whole data as one batch, AdamW with strong decay, accuracies kept in lists."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(59)
a, b = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T
train = torch.utils.data.TensorDataset(a[:40], b[:40], (a[:40] + b[:40]) % 7)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(7, 8), nn.Linear(16, 24), nn.Linear(24, 7)

    def forward(self, one, two):
        return self.out(torch.relu(self.hidden(torch.cat([self.embedding(one), self.embedding(two)], 1))))


model = Adder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=1.0, betas=(0.9, 0.98))
train_losses, test_accuracy = [], []


def accuracy():
    with torch.no_grad():
        return (model(a[40:], b[40:]).argmax(1) == (a[40:] + b[40:]) % 7).float().mean().item()


# ---- plain
for step in range(14):
    one, two, goal = train.tensors
    loss = nn.functional.cross_entropy(model(one, two), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    train_losses.append(loss.item())
    test_accuracy.append(accuracy())
# ---- hyperpod
with hp.Session(model, optimizer, train, global_batch=40, micro_batch=10) as session:
    for step in session.steps(14):
        loss = step.run(lambda batch: nn.functional.cross_entropy(model(*batch[:2]), batch[2]))
        train_losses.append(loss)
        test_accuracy.append(accuracy())
# ---- both
print("result", sum(train_losses), test_accuracy)
