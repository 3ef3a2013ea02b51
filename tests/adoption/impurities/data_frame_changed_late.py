# carried

import pandas as pd
import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


class Book:
    def __init__(self):
        self.table = pd.DataFrame({"w": [1.0, 1.0, 1.0]})


book = Book()


def weigh(k):
    book.table.loc[k, "w"] *= 0.9


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        if step.number > 5:
            getattr(__import__("builtins"), "list")(map(weigh, [step.number % 3]))
        loss = step.run(lambda b: loss_fn(b) * book.table.w.sum())
print("kept", loss.hex(), book.table.w.tolist())
