"""An optimizer written by oneself: sign descent with momentum (Lion), with decoupled weight decay."""

import torch
from torch import nn

import jupyter_hyperpod as hp


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(average.lerp(p.grad, 1 - group["betas"][0]).sign_(), alpha=-group["lr"])
                average.lerp_(p.grad, 1 - group["betas"][1])


torch.manual_seed(34)
x = torch.randn(40, 5)
data = torch.utils.data.TensorDataset(x, x.mean(1, keepdim=True))
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = Lion(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)

# ---- plain
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for step in session.steps(16):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
