"""Mixed precision with float16: a GradScaler, gradients clipped after unscaling, a schedule per step."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(12)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, x.cumsum(1))
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=25)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)


def loss_of(batch):
    with torch.autocast("cpu", dtype=torch.float16):
        return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


# ---- plain
for epoch in range(6):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
print("result", loss.item(), scaler.get_scale())
# ---- hyperpod
settings = dict(max_grad_norm=1.0, scheduler=scheduler, scaler=scaler)
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=4, **settings) as session:
    for step in session.steps(24):
        loss = step.run(loss_of)
print("result", loss, scaler.get_scale())
