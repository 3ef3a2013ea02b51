"""Two trainings in one cell: pretraining of an autoencoder, then fine-tuning of its encoder with a new head."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(33)
x = torch.randn(48, 6)
labels = (x[:, 0] * x[:, 1] > 0).long()
encoder, decoder, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 6), nn.Linear(8, 2)
autoencoder, classifier = nn.Sequential(encoder, decoder), nn.Sequential(encoder, head)
pretraining = torch.optim.Adam(autoencoder.parameters(), lr=1e-2)
finetuning = torch.optim.SGD(classifier.parameters(), lr=0.1)
supervised = torch.utils.data.TensorDataset(x, labels)

# ---- plain
for batch in torch.utils.data.DataLoader(x, batch_size=6, shuffle=True):
    pretraining.zero_grad()
    nn.functional.mse_loss(autoencoder(batch), batch).backward()
    pretraining.step()
for inputs, targets in torch.utils.data.DataLoader(supervised, batch_size=6, shuffle=True):
    finetuning.zero_grad()
    loss = nn.functional.cross_entropy(classifier(inputs), targets)
    loss.backward()
    finetuning.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(autoencoder, pretraining, list(x), global_batch=6, micro_batch=2) as session:
    for step in session.steps(8):
        step.run(lambda batch: nn.functional.mse_loss(autoencoder(batch), batch))
with hp.Session(classifier, finetuning, supervised, global_batch=6, micro_batch=2) as session:
    for step in session.steps(8):
        loss = step.run(lambda batch: nn.functional.cross_entropy(classifier(batch[0]), batch[1]))
print("result", loss)
