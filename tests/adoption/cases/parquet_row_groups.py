"""Row groups of a Parquet file, opened when first read, in a small cache; a pandas table of weights beside it."""

import os

import pandas
import pyarrow
import pyarrow.parquet
import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(43)
path = f"rows-{os.getpid()}.parquet"
columns = {name: torch.randn(96).tolist() for name in "abc"}
pyarrow.parquet.write_table(pyarrow.table(columns | {"kind": [k % 4 for k in range(96)]}), path, row_group_size=16)
weights = pandas.DataFrame({"kind": range(4), "weight": [0.5, 1.0, 1.5, 2.0]}).set_index("kind")["weight"]


class Rows(torch.utils.data.Dataset):
    def __init__(self, path, size=16):
        self.path, self.size, self.file, self.groups = path, size, None, {}

    def __len__(self):
        return 96

    def __getitem__(self, index):
        if self.file is None:
            self.file = pyarrow.parquet.ParquetFile(self.path)
        group = index // self.size
        if group not in self.groups:
            if len(self.groups) > 2:
                self.groups.pop(next(iter(self.groups)))
            self.groups[group] = self.file.read_row_group(group)
        row = self.groups[group].slice(index % self.size, 1).to_pylist()[0]
        return torch.tensor([row["a"], row["b"], row["c"]]), weights[row["kind"]]


data = Rows(path)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []


def loss_of(batch):
    x, weight = batch
    return (weight * (model(x).squeeze(-1) - x.sum(1)) ** 2).mean()


# ---- plain
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, workers=2) as session:
    for step in session.steps(24):
        losses.append(step.run(loss_of))
# ---- both
print("result", losses)
