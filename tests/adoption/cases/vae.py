"""PyTorch's variational autoencoder: reparameterisation with random noise, a loss of two parts, a running total."""

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(2)
data = [torch.rand(16) for _ in range(64)]


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.logvar = nn.Linear(16, 12), nn.Linear(12, 3), nn.Linear(12, 3)
        self.fc3, self.fc4 = nn.Linear(3, 12), nn.Linear(12, 16)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(x):
    recon, mu, logvar = model(x)
    kld = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    return F.binary_cross_entropy(recon, x) + kld


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loss = 0.0

# ---- plain
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(batch)
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
print("result", train_loss / 16)
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            train_loss += step.run(loss_function)
print("result", train_loss / 16)
