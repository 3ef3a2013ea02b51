"""LoRA: a frozen base, low-rank adapters that are trained, dropout on their input."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(9)
x = torch.randn(50, 8)
data = torch.utils.data.TensorDataset(x, torch.tanh(x).roll(1, 1))


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.dropout, self.scaling = nn.Dropout(0.1), alpha / rank

    def forward(self, x):
        return self.base(x) + self.dropout(x) @ self.lora_A.T @ self.lora_B.T * self.scaling


model = nn.Sequential(LoRALinear(nn.Linear(8, 16)), nn.GELU(), LoRALinear(nn.Linear(16, 8)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for step in session.steps(15):
        step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
# ---- both
print("result", model.eval()(x).double().sum().item())
