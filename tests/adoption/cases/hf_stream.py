"""A streamed Hugging Face data set: filtered, mapped and formatted, read once through."""

import datasets
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(42)
rows = {"x": torch.randn(160, 3).tolist()}
stream = datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=4)
stream = stream.filter(lambda row: row["x"][0] > -1.5).map(lambda row: {"label": sum(row["x"])})
stream = stream.with_format("torch")
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []


def mse(batch):
    return nn.functional.mse_loss(model(batch["x"].float()).squeeze(-1), batch["label"].float())


# ---- plain
for batch in torch.utils.data.DataLoader(stream, batch_size=8):
    loss = mse(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if len(losses) == 18:
        break
# ---- hyperpod
loader = torch.utils.data.DataLoader(stream, batch_size=8)
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(18):
        losses.append(step.run(mse))
# ---- both
print("result", losses)
