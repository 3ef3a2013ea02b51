"""PyTorch's MNIST example: a small CNN, epochs, Adadelta, StepLR per epoch, a test loop at the end."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

import jupyter_hyperpod as hp

torch.manual_seed(1)
images = torch.rand(96, 1, 12, 12)
labels = (images.mean((1, 2, 3)) * 1000).long() % 10
train = torch.utils.data.TensorDataset(images, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 8, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(128, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = self.dropout2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
loader = torch.utils.data.DataLoader(train, batch_size=24, shuffle=True)

# ---- plain
for epoch in range(3):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    scheduler.step()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=24, micro_batch=6) as session:
    for epoch in session.epochs(3):
        model.train()
        for step in session.steps(4):
            step.run(lambda batch: F.nll_loss(model(batch[0]), batch[1]))
        scheduler.step()
# ---- both
model.eval()
with torch.no_grad():
    correct = (model(images).argmax(1) == labels).sum().item()
print("result", correct, sum(p.double().sum().item() for p in model.parameters()))
