"""A transformer language model over words: a positional buffer, a mask, the learning rate divided on a plateau."""

import math

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(17)
corpus = torch.tensor([hash_ * 7919 % 23 for hash_ in range(600)])
windows = [(corpus[i : i + 10], corpus[i + 1 : i + 11]) for i in range(0, 560, 10)]


class TransformerModel(nn.Module):
    def __init__(self, tokens=23, width=12):
        super().__init__()
        place = torch.arange(10)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.register_buffer("pe", torch.stack([place.sin(), place.cos()], -1).flatten(1))
        layer = nn.TransformerEncoderLayer(width, 2, 24, 0.1, batch_first=True)
        self.encoder, self.decoder = nn.TransformerEncoder(layer, 1), nn.Linear(width, tokens)
        self.embedding = nn.Embedding(tokens, width)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        return self.decoder(self.encoder(self.embedding(tokens) + self.pe, mask, is_causal=True))


model = TransformerModel()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
best_val_loss = None


def loss_of(batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def anneal(val_loss):
    global best_val_loss
    if not best_val_loss or val_loss < best_val_loss:
        best_val_loss = val_loss
    else:
        for group in optimizer.param_groups:
            group["lr"] /= 4.0


# ---- plain
for epoch in range(5):
    total = 0.0
    for batch in torch.utils.data.DataLoader(windows, batch_size=28, shuffle=True):
        model.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
    anneal(total)
# ---- hyperpod
with hp.Session(model, optimizer, windows, global_batch=28, micro_batch=7, max_grad_norm=0.25) as session:
    for epoch in session.epochs(5):
        total = 0.0
        for step in session.steps(2):
            total += step.run(loss_of)
        anneal(total)
# ---- both
print("result", best_val_loss, optimizer.param_groups[0]["lr"])
