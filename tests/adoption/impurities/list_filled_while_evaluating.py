# refused: predictions in line 16
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
predictions = []


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def evaluate_fn(batch):
    predictions.extend(model(batch[0]).flatten().tolist())
    return loss_fn(batch)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number % 5 == 0:
            loss = session.evaluate(evaluate_fn, data)
print("kept", loss.hex(), len(predictions))
