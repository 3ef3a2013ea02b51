# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history, averages, row = [], [], None


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(5):
        row = {"epoch": epoch, "sum": 0.0}
        history.append(row)
        average = torch.zeros(1, 4)
        averages.append(average)
        for step in session.steps(2):
            loss = step.run(loss_fn)
            row["sum"] += loss
            average.add_(model.weight.detach(), alpha=0.5)
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + history[-1]["sum"] + float(averages[-1].sum()))
print("kept", loss.hex(), history, averages)
