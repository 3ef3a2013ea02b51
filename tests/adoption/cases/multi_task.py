"""Two heads with learned uncertainty weights, a SequentialLR schedule, and the mean of the last losses in a deque."""

from collections import deque

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(57)
x = torch.randn(48, 6)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long(), x[:, 1:2])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 2), nn.Linear(12, 1)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, inputs, labels, values):
        hidden = torch.relu(self.body(inputs))
        losses = torch.stack(
            [nn.functional.cross_entropy(self.one(hidden), labels), nn.functional.mse_loss(self.two(hidden), values)]
        )
        return (torch.exp(-self.log_vars) * losses + self.log_vars).sum()


model = TwoHeads()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [4])
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
recent = deque(maxlen=5)

# ---- plain
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        scheduler.step()
        recent.append(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=12, micro_batch=3, scheduler=scheduler) as session:
    for step in session.steps(16):
        recent.append(step.run(lambda batch: model(*batch)))
# ---- both
print("result", sum(recent) / len(recent), model.log_vars.tolist())
