# refused: average in line 16
import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def evaluate_fn(batch):
    return torch.nn.functional.mse_loss(average(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=4) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        average.update_parameters(model)
        if step.number % 5 == 0:
            loss = session.evaluate(evaluate_fn, data)
print("kept", loss.hex(), sum(p.sum().item() for p in average.buffers()))
