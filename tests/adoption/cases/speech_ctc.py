"""A speech recogniser with CTC loss, weight normalisation, and spectrograms of unequal length."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import jupyter_hyperpod as hp

torch.manual_seed(61)
spoken = [(torch.randn(8 + i % 4, 5), torch.randint(1, 6, (2 + i % 2,))) for i in range(32)]


def collate(batch):
    sounds = nn.utils.rnn.pad_sequence([sound for sound, _ in batch])
    lengths = torch.tensor([[len(sound), len(text)] for sound, text in batch])
    return sounds, torch.cat([text for _, text in batch]), lengths[:, 0], lengths[:, 1]


model = nn.Sequential(weight_norm(nn.Linear(5, 12)), nn.ReLU(), nn.Linear(12, 6))
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(spoken, batch_size=8, shuffle=True, collate_fn=collate)


def ctc(batch):
    sounds, texts, sound_lengths, text_lengths = batch
    return nn.functional.ctc_loss(model(sounds).log_softmax(2), texts, sound_lengths, text_lengths)


# ---- plain
for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        loss = ctc(batch)
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(ctc)
print("result", loss)
