"""Fine-tuning: the head first, the body is unfrozen after some steps."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(10)
x = torch.randn(48, 6)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
body, head = nn.Sequential(nn.Linear(6, 12), nn.ReLU()), nn.Linear(12, 2)
model = nn.Sequential(body, head)
body.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)

# ---- plain
for epoch in range(4):
    if epoch == 2:
        body.requires_grad_(True)
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for epoch in session.epochs(4):
        if epoch == 2:
            body.requires_grad_(True)
        for step in session.steps(4):
            step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
# ---- both
print("result", sum(p.double().abs().sum().item() for p in model.parameters()))
