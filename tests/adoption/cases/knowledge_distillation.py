"""A student learns from a frozen teacher: softened targets, temperature, a weighted sum of two losses."""

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(14)
x = torch.randn(60, 6)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > x[:, 1]).long())
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
student = nn.Linear(6, 2)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def distillation(batch, temperature=2.0, alpha=0.7):
    inputs, labels = batch
    with torch.no_grad():
        soft = F.softmax(teacher(inputs) / temperature, 1)
    logits = student(inputs)
    kd = F.kl_div(F.log_softmax(logits / temperature, 1), soft, reduction="batchmean") * temperature**2
    return alpha * kd + (1 - alpha) * F.cross_entropy(logits, labels)


# ---- plain
for epoch in range(3):
    for batch in loader:
        loss = distillation(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(student, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(15):
        loss = step.run(distillation)
print("result", loss)
