"""Sentences of unequal length, padded by a collate function; a recurrent classifier over packed sequences."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import jupyter_hyperpod as hp

torch.manual_seed(24)
sentences = [(torch.randint(1, 20, (3 + i % 5,)), i % 2) for i in range(48)]


def collate(batch):
    lengths = torch.tensor([len(tokens) for tokens, _ in batch])
    return pad_sequence([tokens for tokens, _ in batch], True), lengths, torch.tensor([label for _, label in batch])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.out = nn.Embedding(20, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, True, enforce_sorted=False)
        return self.out(self.gru(packed)[1][-1])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(sentences, batch_size=12, shuffle=True, collate_fn=collate)

# ---- plain
for epoch in range(3):
    for tokens, lengths, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3) as session:
    for step in session.steps(12):
        loss = step.run(lambda batch: nn.functional.cross_entropy(model(*batch[:2]), batch[2]))
print("result", loss)
