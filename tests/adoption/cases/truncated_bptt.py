"""A long series in pieces: the LSTM's state of one piece is where the next piece begins."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(72)
series = torch.sin(torch.arange(8 * 16 * 6 + 1) / 5).unsqueeze(1)
pieces = [(series[i : i + 6], series[i + 1 : i + 7]) for i in range(0, 8 * 16 * 6, 6)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 8, 2, batch_first=True, dropout=0.1), nn.Linear(8, 1)

    def forward(self, x, state):
        x, state = self.lstm(x, state)
        return self.head(x), state


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

# ---- plain
streams = [pieces[i * 16 : (i + 1) * 16] for i in range(8)]
h, c = torch.zeros(2, 8, 8), torch.zeros(2, 8, 8)
for turn in range(16):
    x, y = torch.utils.data.default_collate([stream[turn] for stream in streams])
    out, (h, c) = model(x, (h.detach(), c.detach()))
    loss = nn.functional.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, pieces, global_batch=8, micro_batch=2, order="lanes") as session:
    lanes = session.lanes(h=torch.zeros(2, 2, 8), c=torch.zeros(2, 2, 8))

    def loss_of(batch):
        out, (lanes.h, lanes.c) = model(batch[0], (lanes.h, lanes.c))
        return nn.functional.mse_loss(out, batch[1])

    for step in session.steps(16):
        loss = step.run(loss_of)
print("result", loss, lanes[1].h.sum().item())
