"""Semi-supervised mean teacher: a consistency weight that ramps up, an own class that keeps the teacher."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(22)
x = torch.randn(48, 6)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(48) % 4 == 0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


class MeanTeacher:
    def __init__(self, student, decay=0.9):
        self.model, self.decay, self.weight = copy.deepcopy(student), decay, 0.0

    def update(self, student):
        self.weight = min(1.0, self.weight + 0.1)
        with torch.no_grad():
            for mean, new in zip(self.model.parameters(), student.parameters()):
                mean.lerp_(new, 1 - self.decay)

    def loss(self, batch):
        inputs, labels, known = batch
        logits = model(inputs)
        supervised = (nn.functional.cross_entropy(logits, labels, reduction="none") * known).mean()
        with torch.no_grad():
            goal = self.model(inputs).softmax(1)
        return supervised + self.weight * nn.functional.mse_loss(logits.softmax(1), goal)


teacher = MeanTeacher(model)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)

# ---- plain
for epoch in range(5):
    for batch in loader:
        loss = teacher.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(model)
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=4) as session:
    for step in session.steps(15):
        step.run(teacher.loss)
        teacher.update(model)
# ---- both
print("result", teacher.weight, sum(p.double().sum().item() for p in teacher.model.parameters()))
