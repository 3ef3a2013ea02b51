"""Source of the cells that several tests run."""

from __future__ import annotations

# a small model and its loss, which takes a few milliseconds
MODEL = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
def loss_fn(batch):
    time.sleep(0.005)
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""
# trains until it is told to stop
TRAIN = f"""{MODEL}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=1) as session:
    for step in session.steps(STEPS):
        loss = step.run(loss_fn)
        session.log(loss=loss)
        if step.number == 1:
            print("rank", session.rank, "trains")
"""
# whose loss function fills a list, of which each member has the items of its own share; the loop prints it
FILLS_A_LIST = """
import torch, jupyter_hyperpod as hp
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data, sizes = [torch.randn(4) for _ in range(32)], []
def loss_fn(batch):
    sizes.append(float(batch.sum()))
    return model(batch).square().mean()
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(6):
        step.run(loss_fn)
        print(step.number, len(sizes))
"""


def train(steps: int = 100_000) -> str:
    """Return the source of a small training run."""
    return TRAIN.replace("STEPS", str(steps))
