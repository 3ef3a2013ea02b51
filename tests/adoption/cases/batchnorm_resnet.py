"""A small residual network with batch normalisation, OneCycle, and evaluation with running statistics."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(7)
images = torch.randn(48, 3, 8, 8)
labels = (images.mean((1, 2, 3)) > 0).long()
data = torch.utils.data.TensorDataset(images, labels)


class BasicBlock(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
        self.downsample = nn.Conv2d(inner, outer, 1, bias=False)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.downsample(x))


model = nn.Sequential(BasicBlock(3, 4), BasicBlock(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)

# ---- plain
for epoch in range(4):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=4, scheduler=scheduler) as session:
    for step in session.steps(12):
        step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
# ---- both
model.eval()
print("result", model(images).double().sum().item(), model[1].bn2.running_var.double().sum().item())
