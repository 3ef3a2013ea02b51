"""nn.Embedding(sparse=True) with SparseAdam in plain PyTorch, and with Adam in a session, as its refusal says."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(16)
words = torch.randint(0, 40, (60, 4))
data = torch.utils.data.TensorDataset(words, words.float().mean(1) / 40)
model = nn.EmbeddingBag(40, 8, sparse=True, mode="sum")
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def loss_of(batch):
    return nn.functional.mse_loss(model(batch[0]).mean(1), batch[1])


# ---- plain
optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.05)
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
# ---- hyperpod
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(20):
        loss = step.run(loss_of)
# ---- both
print("result", model.weight.double().sum().item())
