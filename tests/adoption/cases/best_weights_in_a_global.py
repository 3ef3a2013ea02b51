"""A function trains and keeps its best weights in a global variable, which only the code behind the call reads."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(6)
x = torch.randn(48, 5)
data = torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True))
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=5e-2)
best, best_weight = float("inf"), None


# ---- plain
def train():
    global best, best_weight
    for step in range(40):
        loss = nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best and step < 12:
            best, best_weight = loss.item(), model.weight.detach().clone()


# ---- hyperpod
def train():
    global best, best_weight
    with hp.Session(model, optimizer, data, global_batch=48, micro_batch=8) as session:
        for step in session.steps(40):
            loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
            if loss < best and step.index < 12:
                best, best_weight = loss, model.weight.detach().clone()


# ---- both
train()
with torch.no_grad():
    model.weight.copy_(best_weight)
print("result", f"{best:.5f}", f"{model.weight.sum().item():.5f}")
