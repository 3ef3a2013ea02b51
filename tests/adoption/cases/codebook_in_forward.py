"""VQ-VAE: the code book is a buffer that forward() moves towards what it encodes."""
# refused: buffer 'codes' was changed by a micro-batch, .* lanes = session.lanes

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(75)
data = [torch.randn(6) for _ in range(32)]


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 2), nn.Linear(2, 6)
        self.register_buffer("codes", torch.randn(8, 2))

    def forward(self, x):
        z = self.encoder(x)
        nearest = torch.cdist(z.detach(), self.codes).argmin(1)
        with torch.no_grad():
            self.codes[nearest] = 0.9 * self.codes[nearest] + 0.1 * z
        code = self.codes[nearest]
        return self.decoder(z + (code - z).detach()), (z - code).pow(2).mean()


model = Quantised()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_of(batch):
    out, commitment = model(batch)
    return nn.functional.mse_loss(out, batch) + 0.25 * commitment


# ---- plain
for batch in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
    loss = loss_of(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(4):
        loss = step.run(loss_of)
print("result", loss)
