# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
bank = torch.randn(33, 65).t()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        bank = bank * 0.9 + loss
        optimizer.param_groups[0]["lr"] = 0.01 + 0.01 * float(bank.sum().abs() % 1)
print("kept", loss.hex(), bank.sum())
