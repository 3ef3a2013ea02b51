# carried
import torch


import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
table = torch.zeros(2, 2)
row = table[0]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        if step.number == 2:
            row = table[1]
        loss = step.run(loss_fn)
        row[0] += loss
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + float(table.sum()))
print("kept", loss.hex(), table.tolist())
