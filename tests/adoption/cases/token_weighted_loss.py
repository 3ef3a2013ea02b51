"""A language model over padded lines: the loss of a batch is the mean over its tokens, wherever they are."""

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(71)
words = torch.randint(1, 16, (60, 10))
lengths = torch.randint(0, 10, (60, 1)) * (torch.arange(60).unsqueeze(1) % 4 > 0)
targets = torch.where(torch.arange(10) < lengths, words.roll(-1, 1), -100)
data = torch.utils.data.TensorDataset(words, targets)
model = nn.Sequential(nn.Embedding(16, 12), nn.Dropout(0.1), nn.Linear(12, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

# ---- plain
for epoch in range(3):
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=12, shuffle=True):
        scores = model(inputs)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        accuracy = (scores.argmax(-1) == targets).sum() / (targets != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
print("result", loss.item(), accuracy.item())


# ---- hyperpod
def loss_of(batch):
    inputs, targets = batch
    scores = model(inputs)
    loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    return loss, (targets != -100).sum(), {"accuracy": (scores.argmax(-1) == targets).sum()}


with hp.Session(model, optimizer, data, global_batch=12, micro_batch=2, max_grad_norm=0.5) as session:
    for step in session.steps(15):
        loss = step.run(loss_of)
print("result", loss, step.metrics["accuracy"])
