"""ReduceLROnPlateau on the accuracy of each step, given to the session."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(14)
x = torch.randn(48, 5)
data = torch.utils.data.TensorDataset(x, x.sum(1).gt(0).long())
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def loss_of(batch):
    scores = model(batch[0])
    accuracy = (scores.argmax(1) == batch[1]).float().mean()
    return nn.functional.cross_entropy(scores, batch[1]), {"accuracy": accuracy}


# ---- plain
for epoch in range(5):
    for batch in loader:
        optimizer.zero_grad()
        loss, metrics = loss_of(batch)
        loss.backward()
        optimizer.step()
        scheduler.step(metrics["accuracy"])
# ---- hyperpod
settings = dict(scheduler=scheduler, scheduler_metric="accuracy")
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3, **settings) as session:
    for step in session.steps(20):
        loss = step.run(loss_of)
# ---- both
print("result", float(loss), scheduler.best, optimizer.param_groups[0]["lr"])
