"""Self-training: between the epochs the model labels the samples that it is sure of."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(64)
x = torch.randn(48, 4)
labels = (x[:, 0] > 0).long()
known = torch.arange(48) < 12
weights = known.float()
data = torch.utils.data.TensorDataset(x, labels, weights)
model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def loss_of(batch):
    each = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (each * batch[2]).mean()


def relabel():
    with torch.no_grad():
        sure, chosen = model(x).softmax(1).max(1)
    labels[~known] = chosen[~known]
    weights[~known] = (sure[~known] > 0.6).float()


# ---- plain
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
    relabel()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            step.run(loss_of)
        relabel()
# ---- both
print("result", int(labels.sum()), float(weights.sum()))
