"""Stochastic weight averaging with torch's AveragedModel and SWALR in the last part of the run."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

import jupyter_hyperpod as hp

torch.manual_seed(16)
x = torch.randn(40, 5)
data = torch.utils.data.TensorDataset(x, x.norm(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
averaged, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)

# ---- plain
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    if epoch > 1:
        averaged.update_parameters(model)
        schedule.step()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        if epoch > 1:
            averaged.update_parameters(model)
            schedule.step()
# ---- both
print("result", averaged(x).double().sum().item(), optimizer.param_groups[0]["lr"])
