"""Shampoo, as people write it: a preconditioner per dimension, its inverse root renewed now and then."""

import torch
from torch import nn

import jupyter_hyperpod as hp


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, momentum=0.9, epsilon=1e-4, every=3):
        super().__init__(params, {"lr": lr, "momentum": momentum, "epsilon": epsilon, "every": every})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if not state:
                    state["step"] = 0
                    state["momentum"] = torch.zeros_like(grad)
                    for dim, size in enumerate(grad.shape):
                        state[f"precond_{dim}"] = group["epsilon"] * torch.eye(size)
                        state[f"inverse_{dim}"] = torch.zeros(size, size)
                for dim, size in enumerate(grad.shape):
                    rows = grad.transpose(0, dim).reshape(size, -1)
                    state[f"precond_{dim}"].add_(rows @ rows.T)
                    if state["step"] % group["every"] == 0:
                        values, vectors = torch.linalg.eigh(state[f"precond_{dim}"])
                        root = values.clamp(min=1e-12).pow(-0.5 / grad.dim())
                        state[f"inverse_{dim}"].copy_(vectors @ torch.diag(root) @ vectors.T)
                    shape = grad.transpose(0, dim).shape
                    grad = (state[f"inverse_{dim}"] @ grad.transpose(0, dim).reshape(size, -1)).view(shape)
                    grad = grad.transpose(0, dim)
                state["step"] += 1
                state["momentum"].mul_(group["momentum"]).add_(grad)
                p.add_(state["momentum"], alpha=-group["lr"])


torch.manual_seed(50)
x = torch.randn(48, 5)
data = torch.utils.data.TensorDataset(x, x.sort(1).values)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5))
optimizer = Shampoo(model.parameters())
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)

# ---- plain
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(16):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
