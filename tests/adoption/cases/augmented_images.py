"""Images are flipped, shifted and made noisy in the data set, with three libraries' random numbers."""

import random

import numpy as np
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(23)


class Augmented(torch.utils.data.Dataset):
    def __init__(self, count=48):
        self.images = torch.rand(count, 1, 8, 8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        image = image.roll(int(np.random.randint(-2, 3)), -1) + 0.05 * torch.randn_like(image)
        return image, int(index % 3)


net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(Augmented(), batch_size=16, shuffle=True)

# ---- plain
for epoch in range(4):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(net, optimizer, loader, global_batch=16, micro_batch=4) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
print("result", loss)
