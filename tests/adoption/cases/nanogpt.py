"""A character-level GPT in nanoGPT's style: AdamW with decay groups, warm-up and cosine by hand, clipping."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

torch.manual_seed(1337)
text = torch.tensor([ord(c) % 32 for c in "to be or not to be that is the question " * 40])
block_size, max_iters, learning_rate = 16, 14, 1e-2
windows = [(text[i : i + block_size], text[i + 1 : i + 1 + block_size]) for i in range(0, 1200, 8)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = self.attn(self.ln_1(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(32, width), nn.Embedding(block_size, width)
        self.h = nn.Sequential(Block(width), Block(width))
        self.lm_head = nn.Linear(width, 32, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        x = self.h(self.wte(idx) + self.wpe(torch.arange(idx.size(1))))
        return F.cross_entropy(self.lm_head(x).view(-1, 32), targets.view(-1))


def get_lr(it):
    if it < 3:
        return learning_rate * (it + 1) / 4
    return learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * (it - 3) / (max_iters - 3))))


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}])

# ---- plain
loader = torch.utils.data.DataLoader(windows, batch_size=16, shuffle=True)
batches = iter(loader)
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    try:
        batch = next(batches)
    except StopIteration:
        batches = iter(loader)
        batch = next(batches)
    loss = model(*batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("result", loss.item())
# ---- hyperpod
loader = torch.utils.data.DataLoader(windows, batch_size=16, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=16, micro_batch=4, max_grad_norm=1.0) as session:
    for step in session.steps(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step.index)
        loss = step.run(lambda batch: model(*batch))
print("result", loss)
