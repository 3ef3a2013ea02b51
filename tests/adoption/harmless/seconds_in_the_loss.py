import time

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
seconds = []


def loss_fn(batch):
    began = time.perf_counter()
    out = model(batch[0])
    seconds.append(time.perf_counter() - began)
    return torch.nn.functional.mse_loss(out, batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
