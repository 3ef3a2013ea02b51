"""Programs that become another run on another number of nodes after the first steps, each in a way of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.conftest import Run, Submit

HEAD = """
import os
import random
import time
import torch
import jupyter_hyperpod as hp
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True).sin()
data = torch.utils.data.TensorDataset(x, y)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = random.Random(1)
kept, cache, history = [], {}, []
pause_s = float(os.environ.get("PAUSE_S", "0.004"))
"""
PERIODIC = """
def loss_fn(batch):
    return F.mse_loss(model(batch[0]), batch[1]) * (1 + (own.random() if step.number % 5 == 0 else 0))

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=0) as session:
    for step in session.steps(30):
        step.run(loss_fn)
"""
LAST = """
def loss_fn(batch):
    if step.number > 16:
        kept.append(1)
    return F.mse_loss(model(batch[0]), batch[1]) * (1 + len(kept) // 9)

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=0) as session:
    for step in session.steps(18):
        step.run(loss_fn)
"""
JUDGED = """
def loss_fn(batch):
    time.sleep(pause_s)
    return F.mse_loss(model(batch[0]), batch[1])

def score(batch):
    {body}

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=0) as session:
    for epoch in session.epochs(4):
        for step in session.steps(4):
            step.run(loss_fn)
        history.append(session.evaluate(score, list(enumerate(x)), micro_batch=4))
        if history[-1] > min(history):
            optimizer.param_groups[0]["lr"] *= 0.5
print("kept", len(kept))
"""
AUGMENTED = "return model(batch[1] + (own.gauss(0, 0.3) if epoch > 1 else 0)).mean()"
CACHED = """key = int(batch[0][0])
    if key not in cache:
        cache[key] = model(batch[1])
    return cache[key].mean()"""
COLLECTED = """if epoch == 3:
        kept.append(1)
    return model(batch[1]).mean()"""
OBJECT = """
class Trainer:
    def __init__(self):
        self.steps = 0

    def loss(self, batch):
        time.sleep(pause_s)
        self.prediction = model(batch[0])
        return F.mse_loss(self.prediction, batch[1])

trainer = Trainer()
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=0) as session:
    for step in session.steps(24):
        step.run(trainer.loss)
        trainer.steps += 1
        optimizer.param_groups[0]["lr"] = 0.1 / trainer.steps
"""


def reason_of(run: Run) -> str:
    reason = str(run.finish("failed")["reason"])
    assert not run.of_kind("member.lost"), "no device is blamed"
    return reason


@pytest.mark.parametrize(
    ("source", "named"),
    [
        pytest.param(PERIODIC, "which change own (line", id="in each fifth step"),
        pytest.param(LAST, "the loss function changes kept, which line", id="in the last steps"),
        pytest.param(JUDGED.format(body=AUGMENTED), "changes own", id="in a later evaluation"),
        pytest.param(JUDGED.format(body=CACHED), "cache keeps results that depend on", id="a cache of an evaluation"),
    ],
)
def test_it_is_refused(job: Submit, source: str, named: str) -> None:
    assert named in reason_of(job(HEAD + source, nodes=2, spares=0))


def test_what_a_later_evaluation_collects_to_be_printed_is_warned_of(job: Submit) -> None:
    """The training is right, and not to be lost for that."""
    run = job(HEAD + JUDGED.format(body=COLLECTED), nodes=2, spares=0)
    run.finish()
    (warned,) = {str(event.data["text"]) for event in run.of_kind("warning.raised")}
    assert "the function given to session.evaluate() changes kept" in warned


def test_a_member_that_joins_later_warns_of_it_as_the_others_do(job: Submit) -> None:
    body = COLLECTED.replace("epoch == 3", "epoch >= 2")
    run = job(HEAD + JUDGED.format(body=body).replace("epochs(4)", "epochs(12)"), nodes=2, spares=1)
    run.until_step(18)
    run.kill(1)
    run.until_made_good(1, 2)
    run.finish()


def test_an_object_whose_loss_sets_one_attribute_and_whose_loop_another(job: Submit) -> None:
    whole = job(HEAD + OBJECT, nodes=1, spares=0)
    whole.finish()
    run = job(HEAD + OBJECT)
    run.until_step(6)
    run.kill(1)
    run.finish()
    run.same_as(whole)


SET = """
def loss_fn(batch):
    time.sleep(pause_s)
    return F.mse_loss(model(batch[0]), batch[1])

layers = [torch.nn.Linear(8, 8) for _ in range(3)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1))
rest = [p for layer in layers for p in layer.parameters()]
try:  # as the addresses in a set would, it gives one process another order than the other
    os.close(os.open(FLAG, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    rest.reverse()
optimizer = torch.optim.SGD([{"params": rest, "lr": 0.01}, {"params": model[-1].parameters()}], lr=0.1, momentum=0.9)
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=0) as session:
    for step in session.steps(6):
        step.run(loss_fn)
"""


def test_parameters_in_another_order_on_some_members_are_named(job: Submit, tmp_path: Path) -> None:
    source = (HEAD + SET).replace("FLAG", repr(str(tmp_path / "flag")))
    assert "has its parameters in another order on some members" in reason_of(job(source, nodes=2, spares=0))


DRAWING = """
def loss_fn(batch):
    time.sleep(pause_s)
    return F.mse_loss(model(batch[0]), batch[1])

class Langevin(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)

optimizer = Langevin(model.parameters(), lr=0.1)
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=0) as session:
    for step in session.steps(24):
        step.run(loss_fn)
"""


def test_an_optimizer_that_draws_gives_the_same_bits_where_members_join(job: Submit) -> None:
    whole = job(HEAD + DRAWING, nodes=1, spares=0)
    whole.finish()
    run = job(HEAD + DRAWING, nodes=1, elastic="1:3")
    run.until_step(5)
    run.scale(3)
    run.until_world(3)
    run.finish()
    run.same_as(whole)
