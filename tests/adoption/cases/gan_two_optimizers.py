"""A DCGAN in small: two networks, two optimizers, real and fake labels, batch normalisation in the generator."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(80)
real = [torch.tanh(torch.randn(1, 8, 8) + 1) for _ in range(48)]
netG = nn.Sequential(
    nn.ConvTranspose2d(4, 6, 4), nn.BatchNorm2d(6), nn.ReLU(), nn.ConvTranspose2d(6, 1, 4, 2, 1), nn.Tanh()
)
netD = nn.Sequential(nn.Conv2d(1, 6, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 4), nn.Flatten(0))
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
G_losses, D_losses = [], []


def d_loss(data):
    fake = netG(torch.randn(len(data), 4, 1, 1)).detach()
    output_real, output_fake = netD(data), netD(fake)
    return criterion(output_real, torch.ones(len(data))) + criterion(output_fake, torch.zeros(len(data)))


def g_loss(data):
    output = netD(netG(torch.randn(len(data), 4, 1, 1)))
    return criterion(output, torch.ones(len(data)))


# ---- plain
for epoch in range(2):
    for data in torch.utils.data.DataLoader(real, batch_size=8, shuffle=True):
        optimizerD.zero_grad()
        errD = d_loss(data)
        errD.backward()
        optimizerD.step()
        optimizerG.zero_grad()
        errG = g_loss(data)
        errG.backward()
        optimizerG.step()
        D_losses.append(errD.item())
        G_losses.append(errG.item())
# ---- hyperpod
model = nn.ModuleList([netD, netG])
with hp.Session(model, [optimizerD, optimizerG], real, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        D_losses.append(step.run(d_loss, optimizer=optimizerD))
        G_losses.append(step.run(g_loss, optimizer=optimizerG))
# ---- both
print("result", sum(D_losses), sum(G_losses), len(G_losses))
