"""A small vision transformer in timm's style: stochastic depth, layer-wise learning-rate decay, EMA of state dicts."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(38)
images = torch.randn(40, 4, 12)
data = torch.utils.data.TensorDataset(images, images.mean((1, 2)).gt(0).long())


class Block(nn.Module):
    def __init__(self, width=12, drop=0.2):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp, self.drop = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)), drop

    def forward(self, x):
        keep = 1.0
        if self.training:
            keep = torch.bernoulli(torch.full((len(x), 1, 1), 1 - self.drop)) / (1 - self.drop)
        h = self.norm(x)
        x = x + keep * self.attn(h, h, h, need_weights=False)[0]
        return x + keep * self.mlp(x)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 12)), nn.Parameter(torch.randn(1, 5, 12) * 0.02)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(12, 2)

    def forward(self, x):
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.blocks(x)[:, 0])


model = ViT()
groups = [
    {"params": [model.cls_token, model.pos_embed], "lr": 1e-3},
    {"params": model.blocks.parameters(), "lr": 3e-3},
    {"params": model.head.parameters(), "lr": 5e-3},
]
optimizer = torch.optim.AdamW(groups, weight_decay=0.05)
model_ema = copy.deepcopy(model).eval()
loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)


def update(decay=0.9):
    with torch.no_grad():
        for kept, value in zip(model_ema.state_dict().values(), model.state_dict().values()):
            kept.copy_(decay * kept + (1 - decay) * value)


# ---- plain
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update()
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=10, micro_batch=2) as session:
    for step in session.steps(12):
        step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        update()
# ---- both
print("result", model_ema(images).double().sum().item())
