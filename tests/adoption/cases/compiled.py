"""A model under torch.compile, with the backend that traces and does not need a compiler."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(49)
x = torch.randn(64, 6)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 2))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)

# ---- plain
for epoch in range(2):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(16):
        loss = step.run(lambda batch: nn.functional.cross_entropy(compiled(batch[0]), batch[1]))
print("result", loss)
