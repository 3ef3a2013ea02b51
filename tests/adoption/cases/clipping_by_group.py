"""Gradients of the body clipped by its norm, those of the embedding by value, as in a fine-tuning script."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(13)
words = torch.randint(0, 20, (48, 6))
data = torch.utils.data.TensorDataset(words, words.float().mean(1))
embedding, body = nn.Embedding(20, 8), nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 1))
model = nn.Sequential(embedding, body)
groups = [
    {"params": embedding.parameters(), "lr": 0.02, "max_grad_value": 0.05},
    {"params": body.parameters(), "lr": 0.01, "max_grad_norm": 0.5},
]
optimizer = torch.optim.SGD(groups, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def loss_of(batch):
    return nn.functional.smooth_l1_loss(model(batch[0]).squeeze(1), batch[1])


# ---- plain
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_value_(embedding.parameters(), 0.05)
        torch.nn.utils.clip_grad_norm_(body.parameters(), 0.5)
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(16):
        loss = step.run(loss_of)
print("result", loss)
