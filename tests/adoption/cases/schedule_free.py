"""Schedule-free AdamW, whose weights differ between training and evaluation."""

import schedulefree
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(48)
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.norm(dim=1))
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.02, warmup_steps=4)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
optimizer.train()

# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x).squeeze(1), data.tensors[1]).item()
    optimizer.train()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(3):
        for step in session.steps(8):
            step.run(lambda batch: nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1]))
        optimizer.eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(model(x).squeeze(1), data.tensors[1]).item()
        optimizer.train()
# ---- both
print("result", error)
