"""Everything in functions: main(), train_one_epoch(), evaluate(), a best checkpoint in a dictionary."""

import torch
from torch import nn

import jupyter_hyperpod as hp


def make():
    torch.manual_seed(35)
    x = torch.randn(48, 4)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long()), nn.Sequential(
        nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)
    )


def evaluate(model, data):
    with torch.no_grad():
        return (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()


# ---- plain
def train_one_epoch(model, optimizer, loader, log):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["loss"].append(loss.item())


def main():
    data, model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
    log, best = {"loss": [], "accuracy": []}, {"accuracy": 0.0, "epoch": -1}
    for epoch in range(4):
        train_one_epoch(model, optimizer, loader, log)
        log["accuracy"].append(evaluate(model, data))
        if log["accuracy"][-1] > best["accuracy"]:
            best = {"accuracy": log["accuracy"][-1], "epoch": epoch}
    return log, best


# ---- hyperpod
def train_one_epoch(model, session, log):
    for step in session.steps(4):
        loss = step.run(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        log["loss"].append(loss)


def main():
    data, model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    log, best = {"loss": [], "accuracy": []}, {"accuracy": 0.0, "epoch": -1}
    with hp.Session(model, optimizer, data, global_batch=12, micro_batch=3) as session:
        for epoch in session.epochs(4):
            train_one_epoch(model, session, log)
            log["accuracy"].append(evaluate(model, data))
            if log["accuracy"][-1] > best["accuracy"]:
                best = {"accuracy": log["accuracy"][-1], "epoch": epoch}
    return log, best


# ---- both
print("result", *main())
