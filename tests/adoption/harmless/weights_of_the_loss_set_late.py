# harmless
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), i % 3) for i in range(32)]
criterion = torch.nn.CrossEntropyLoss()


def loss_fn(batch):
    x, y = batch
    return criterion(model(x), y)


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number == 3:
            criterion.weight = torch.tensor([1.0, 2.0, 0.5])
print("kept", loss.hex())
