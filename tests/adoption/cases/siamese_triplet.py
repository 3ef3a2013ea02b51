"""A Siamese network with a triplet margin loss; triplets are mined in the data set."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(18)


class Triplets(torch.utils.data.Dataset):
    def __init__(self, points=40):
        self.points, self.classes = torch.randn(points, 4), torch.arange(points) % 4

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        same = torch.nonzero(self.classes == self.classes[index]).flatten()
        other = torch.nonzero(self.classes != self.classes[index]).flatten()
        positive, negative = same[torch.randint(len(same), ())], other[torch.randint(len(other), ())]
        return self.points[index], self.points[positive], self.points[negative]


net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
criterion = nn.TripletMarginLoss(margin=0.5)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Triplets(), batch_size=20, shuffle=True)

# ---- plain
for epoch in range(5):
    for anchor, positive, negative in loader:
        optimizer.zero_grad()
        loss = criterion(net(anchor), net(positive), net(negative))
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(net, optimizer, loader, global_batch=20, micro_batch=5) as session:
    for step in session.steps(10):
        loss = step.run(lambda batch: criterion(*(net(part) for part in batch)))
print("result", loss)
