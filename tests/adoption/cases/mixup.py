"""Mixup in the loss function, label smoothing, AdamW with a cosine schedule and warm-up in a LambdaLR."""

import math

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(19)
x = torch.randn(64, 10)
data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(10, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1, (step + 1) / 4) * 0.5 * (1 + math.cos(math.pi * step / 16))
)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)


def loss_of(batch):
    inputs, labels = batch
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    order = torch.randperm(len(inputs))
    outputs = model(lam * inputs + (1 - lam) * inputs[order])
    return lam * criterion(outputs, labels) + (1 - lam) * criterion(outputs, labels[order])


# ---- plain
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=8, scheduler=scheduler) as session:
    for step in session.steps(16):
        loss = step.run(loss_of)
print("result", loss)
