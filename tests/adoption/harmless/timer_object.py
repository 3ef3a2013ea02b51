# harmless
import time

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Timer:
    def __init__(self):
        self.total, self.begun, self.calls = 0.0, 0.0, 0

    def __enter__(self):
        self.begun = time.perf_counter()
        return self

    def __exit__(self, *error):
        self.total += time.perf_counter() - self.begun
        self.calls += 1


timer = Timer()


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        with timer:
            pass
        print(timer.total / timer.calls)
print("mean", timer.total / timer.calls)
print("kept", loss.hex())
