"""A scheduler in timm's style, called in the loop: step_update() after each update, step() after each epoch."""

import math

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(17)
x = torch.randn(48, 6)
data = torch.utils.data.TensorDataset(x, x.cumsum(1).sin())
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


class CosineScheduler:
    def __init__(self, optimizer, t_initial, decay_per_epoch):
        self.optimizer, self.t_initial, self.decay_per_epoch, self.factor = optimizer, t_initial, decay_per_epoch, 1.0
        self.base_values = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]

    def state_dict(self):
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict):
        self.__dict__.update(state_dict)

    def step(self, epoch, metric=None):
        self.factor *= self.decay_per_epoch

    def step_update(self, num_updates, metric=None):
        share = self.factor * (1 + math.cos(math.pi * num_updates / self.t_initial)) / 2
        for group, value in zip(self.optimizer.param_groups, self.base_values):
            group["lr"] = value * share


scheduler = CosineScheduler(optimizer, t_initial=20, decay_per_epoch=0.9)


def loss_of(batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


# ---- plain
num_updates = 0
for epoch in range(4):
    for batch in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_updates += 1
        scheduler.step_update(num_updates=num_updates)
    scheduler.step(epoch + 1)
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            loss = step.run(loss_of)
            scheduler.step_update(num_updates=step.number)
        scheduler.step(epoch + 1)
# ---- both
print("result", float(loss), optimizer.param_groups[0]["lr"], scheduler.factor)
