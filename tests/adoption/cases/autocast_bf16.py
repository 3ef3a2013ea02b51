"""Mixed precision: the forward pass under autocast with bfloat16."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(11)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, x.cumsum(1))
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)


def loss_of(batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


# ---- plain
for epoch in range(4):
    for batch in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=4) as session:
    for step in session.steps(16):
        loss = step.run(loss_of)
print("result", loss)
