"""A sequence-to-sequence model with attention; Python's random decides when the teacher is followed."""

import random

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(53)
sequences = [torch.randint(8, (5,)) for _ in range(40)]
teacher_forcing_ratio = 0.5


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(9, 10), nn.GRU(10, 12, batch_first=True)
        self.cell, self.out = nn.GRUCell(10, 12), nn.Linear(24, 8)

    def forward(self, source, target):
        memory, hidden = self.encoder(self.embedding(source))
        hidden, token, outputs = hidden[-1], torch.full((len(source),), 8), []
        for place in range(target.size(1)):
            hidden = self.cell(self.embedding(token), hidden)
            weights = torch.softmax((memory * hidden[:, None]).sum(2), 1)
            outputs.append(self.out(torch.cat([hidden, (weights[..., None] * memory).sum(1)], 1)))
            token = target[:, place] if random.random() < teacher_forcing_ratio else outputs[-1].argmax(1)
        return torch.stack(outputs, 1)


model = Seq2Seq()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


def loss_of(batch):
    return nn.functional.cross_entropy(model(batch, batch.flip(1)).flatten(0, 1), batch.flip(1).flatten())


# ---- plain
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(sequences, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, sequences, global_batch=10, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(loss_of)
print("result", loss)
