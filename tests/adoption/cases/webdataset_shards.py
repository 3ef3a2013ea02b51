"""Samples in tar files, read by webdataset: shards and samples shuffled, decoded, made into tuples."""

import os

import torch
import webdataset
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(45)
pattern = f"shard-{os.getpid()}-{{000000..000003}}.tar"
numbers = torch.randn(96, 3)
for shard in range(4):
    with webdataset.TarWriter(f"shard-{os.getpid()}-{shard:06d}.tar") as tar:
        for index in range(24):
            x = numbers[24 * shard + index]
            tar.write({"__key__": f"{index:04d}", "x.pth": x, "y.cls": int(x.sum() > 0)})
data = webdataset.WebDataset(pattern, shardshuffle=4).shuffle(16, seed=1).decode("torch").to_tuple("x.pth", "y.cls")
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []

# ---- plain
for inputs, labels in torch.utils.data.DataLoader(data, batch_size=8):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
# ---- hyperpod
loader = torch.utils.data.DataLoader(data, batch_size=8)
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(24):
        losses.append(step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])))
# ---- both
print("result", losses)
