"""A table of Hugging Face datasets: mapped, split, with a transform that augments, read by a DataLoader."""

import datasets
import torch
from torch import nn

import jupyter_hyperpod as hp

datasets.disable_progress_bars()
torch.manual_seed(41)
rows = {"x": torch.randn(80, 4).tolist(), "y": list(range(80))}
table = datasets.Dataset.from_dict(rows).map(lambda row: {"label": float(sum(row["x"]))}, remove_columns=["y"])
table = table.train_test_split(test_size=16, seed=1)


def augment(batch):
    x = torch.tensor(batch["x"])
    return {"x": x + 0.1 * torch.randn_like(x), "label": torch.tensor(batch["label"])}


table["train"].set_transform(augment)
table["test"].set_format("torch")
loader = torch.utils.data.DataLoader(table["train"], batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []


def mse(batch):
    return nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["label"])


# ---- plain
for epoch in range(3):
    for batch in loader:
        loss = mse(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(3):
        for step in session.steps(8):
            losses.append(step.run(mse))
# ---- both
with torch.no_grad():
    print("result", losses, mse({"x": table["test"]["x"][:], "label": table["test"]["label"][:]}).item())
