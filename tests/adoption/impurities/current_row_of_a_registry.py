# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
runs = {"current": None, "all": []}


def begin(epoch):
    runs["current"] = {"epoch": epoch, "sum": 0.0}
    runs["all"].append(runs["current"])


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(5):
        begin(epoch)
        for step in session.steps(2):
            loss = step.run(loss_fn)
            runs["current"]["sum"] += loss
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + runs["all"][-1]["sum"] + runs["all"][0]["sum"])
print("kept", loss.hex(), runs["all"])
