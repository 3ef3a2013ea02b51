"""What a step of the optimizer reads besides the state: a newcomer takes the state then, not the last gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jupyter_hyperpod.runtime.program.analysis.stepped_code import reads_cell
from tests.runtime.conftest import Run, Submit

CELL = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(1)
inputs = torch.randn(48, 5)
data = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 1))
optimizer, scheduler = torch.optim.Adam(model.parameters(), lr=1e-2), None
factor = 1.0
SETUP

def loss_fn(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

with hp.Session(model, optimizer, data, global_batch=12, micro_batch=4, scheduler=scheduler) as session:
    for step in session.steps(24):
        model[1].momentum = MOMENTUM
        loss = step.run(loss_fn)
        factor = max(0.2, factor * (0.9 if loss < 2.5 else 0.97))
print("result", loss, factor)
"""
OWN = """
class Trusting(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] * factor)

optimizer = Trusting(model.parameters(), 0.02)
"""
HOOK = """
def decay(optimizer, given, named):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 - 0.01 * factor)

optimizer.register_step_post_hook(decay)
"""
RATE = "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: factor / (1 + 0.05 * done))"
PROGRAMS = {
    "rate by a variable": (RATE, "0.1"),
    "own optimizer": (OWN, "0.1"),
    "hook": (HOOK, "0.1"),
    "momentum": ("", "max(0.01, 0.5 * 0.9**step.number)"),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_member_that_joins_steps_as_the_others_do(job: Submit, name: str) -> None:
    setup, momentum = PROGRAMS[name]
    source = CELL.replace("SETUP", setup).replace("MOMENTUM", momentum)
    undisturbed = job(source, nodes=1)
    undisturbed.finish()
    run = job(source, nodes=1, elastic="1:3", pause_s=0.05)
    for world in (2, 3):
        run.until_step(4 * world)
        run.scale(world)
        run.until_world(world)
    run.full_speed()
    run.finish()
    assert printed(run) == printed(undisturbed)
    run.same_as(undisturbed)


def printed(run: Run) -> set[str]:
    return {line for text in run.text().values() for line in text.splitlines() if line.startswith("result")}


def schedule(function: Callable[[int], float]) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(adam(), function)


def adam() -> torch.optim.Adam:
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])


def half(done: int, turns: int = 4) -> float:
    return 0.5 ** (done / turns)


WARM_UP = 5


class Rate:
    def __init__(self) -> None:
        self.factor = 1.0

    @property
    def half(self) -> float:
        return self.factor / 2

    def now(self) -> float:
        return self.factor

    def __call__(self, done: int) -> float:
        return self.now()


RATE = Rate()


def test_which_schedules_read_what_the_loop_changes() -> None:
    place = SimpleNamespace(factor=1.0)
    trust = 1.0
    changed = {"factor", "loss", "step", "trust"}
    reading = [
        lambda done: place.factor,
        lambda done: trust * done,
        lambda done: RATE(done),
        lambda done: RATE.half,
        lambda done, rate=RATE: rate.now(),
        functools.partial(lambda rate, done: rate(done), RATE),
        RATE,
        RATE.__call__,
    ]
    alone = [lambda done: min(1.0, done / WARM_UP), functools.partial(half, turns=2), lambda done: math.cos(done)]
    for function in reading:
        assert reads_cell([adam()], [schedule(function)], changed)
        assert reads_cell([adam()], [torch.optim.lr_scheduler.SequentialLR(*chained(function))], changed)
    for function in alone:
        assert not reads_cell([adam()], [schedule(function)], changed)
    assert not reads_cell([adam()], [], changed)
    exec("made = lambda done: done", names := {})  # of no module
    assert not reads_cell([adam()], [schedule(names["made"])], changed)


def chained(function: Callable[[int], float]) -> tuple[Any, list[Any], list[int]]:
    optimizer = adam()
    inner = [torch.optim.lr_scheduler.LambdaLR(optimizer, one) for one in (half, function)]
    return optimizer, inner, [3]


def test_which_hooks_read_what_the_loop_changes() -> None:
    optimizer, trust = adam(), 1.0
    optimizer.register_step_post_hook(lambda one, given, named: print(WARM_UP))
    assert not reads_cell([optimizer], [], {"trust"})
    optimizer.register_step_pre_hook(lambda one, given, named: print(trust))
    assert reads_cell([optimizer], [], {"trust"})
