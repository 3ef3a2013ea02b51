"""A graph convolution over a fixed graph; nodes are the samples, the adjacency matrix is a buffer."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(41)
features = torch.randn(30, 6)
adjacency = (torch.rand(30, 30) < 0.2).float() + torch.eye(30)
labels = (features @ torch.randn(6, 3)).argmax(1)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("adjacency", adjacency / adjacency.sum(1, keepdim=True))
        self.one, self.two, self.dropout = nn.Linear(6, 12), nn.Linear(12, 3), nn.Dropout(0.3)

    def forward(self, nodes):
        hidden = torch.relu(self.one(self.adjacency @ features))
        return (self.adjacency @ self.two(self.dropout(hidden)))[nodes]


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=5e-4)
nodes = list(range(30))

# ---- plain
for epoch in range(5):
    for batch in torch.utils.data.DataLoader(nodes, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels[batch])
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, nodes, global_batch=10, micro_batch=5) as session:
    for step in session.steps(15):
        loss = step.run(lambda batch: nn.functional.cross_entropy(model(batch), labels[batch]))
print("result", loss)
