"""Sharpness-aware minimisation inside the loss function: the gradient at perturbed weights, by functional_call."""

import torch
from torch import nn
from torch.func import functional_call

import jupyter_hyperpod as hp

torch.manual_seed(42)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).tanh())
model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)


def sharpness_aware(batch, rho=0.05):
    weights = dict(model.named_parameters())
    loss = nn.functional.mse_loss(functional_call(model, weights, batch[0]), batch[1])
    gradients = torch.autograd.grad(loss, list(weights.values()))
    norm = torch.stack([g.norm() for g in gradients]).norm()
    moved = {name: w + rho * g / norm for (name, w), g in zip(weights.items(), gradients)}
    return nn.functional.mse_loss(functional_call(model, moved, batch[0]), batch[1])


# ---- plain
for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        loss = sharpness_aware(batch)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=5) as session:
    for step in session.steps(12):
        loss = step.run(sharpness_aware)
print("result", loss)
