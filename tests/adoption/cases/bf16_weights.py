"""All weights in bfloat16, SGD with momentum."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(12)
x = torch.randn(32, 6, dtype=torch.bfloat16)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

# ---- plain
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
print("result", loss)
