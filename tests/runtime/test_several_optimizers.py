"""Several optimizers, each with a loss of its own per step: the same bits through faults in any of the runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from tests.runtime.conftest import Submit

GAN = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
critic = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.LeakyReLU(), nn.Linear(8, 1))
model = nn.ModuleList([generator, critic])
critics = torch.optim.Adam(critic.parameters(), lr=1e-2)
generators = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
rates = [torch.optim.lr_scheduler.StepLR(one, 4, 0.7) for one in (critics, generators)]
data = [torch.randn(4) + 1 for _ in range(40)]
history, between, before, after = [], 0, 0.0, 0.0

def slow(update):
    time.sleep(float(os.environ.get("PAUSE_S", "0")) if session._state.applied == update else 0)

def critic_loss(batch):
    slow(4)
    return critic(generator(torch.randn(len(batch), 3)).detach()).mean() - critic(batch).mean()

def generator_loss(batch):
    slow(7)
    return -critic(generator(torch.randn(len(batch), 3))).mean() * (2 + before * after)

settings = dict(global_batch=8, micro_batch=2, max_grad_norm=0.5, scheduler=rates, audit=1.0)
with hp.Session(model, [critics, generators], data, **settings) as session:
    for step in session.steps(10):
        for group in critics.param_groups:
            group["lr"] *= 0.99
        before = critic[0].weight.detach().sum()
        one = step.run(critic_loss)
        between += 1
        after = critic[0].weight.detach().sum()
        noise = torch.rand(()).item()
        history += [one, step.run(generator_loss, optimizer=generators), noise]
print("kept", between, [value.hex() for value in history], critics.param_groups[0]["lr"].hex())
"""


def test_members_are_lost_in_both_runs_of_a_step(job: Submit) -> None:
    """Newcomers arrive between the runs, too, and go on with the second."""
    calm = job(GAN, nodes=1)
    calm.finish()
    run = job(GAN, env={"PAUSE_S": "0.3"})
    for update in (4, 7):  # in the first run of the third step, and in the second of the fourth
        run.until_step(update)
        run.kill(0)
    run.finish()
    assert (run.losses(), run.view["digest"]) == (calm.losses(), calm.view["digest"]), run.story()
    assert set(run.text().values()) == set(calm.text().values())
    assert len(run.of_kind("member.lost")) == 2


def test_a_job_grows_in_the_second_run_of_a_step(job: Submit) -> None:
    """Here with a GradScaler whose scale overflows in the first run of some steps, and in the second of others."""
    scaled = GAN.replace("audit=1.0", "audit=1.0, scaler=scaler").replace("hex())", "hex(), scaler.state_dict())")
    cell = scaled.replace("history,", 'scaler = torch.amp.GradScaler("cpu", 2.0**127, growth_interval=1)\nhistory,', 1)
    calm = job(cell, nodes=1)
    calm.finish()
    run = job(cell, nodes=1, elastic="1:3", env={"PAUSE_S": "0.5"})
    run.until_step(7)
    run.scale(3)
    run.finish()
    assert (run.losses(), run.view["digest"]) == (calm.losses(), calm.view["digest"]), run.story()
    assert set(run.text().values()) == set(calm.text().values())


def parts() -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    return model, torch.optim.Adam(model[0].parameters(), lr=0.1), torch.optim.SGD(model[1].parameters(), lr=0.1)


DATA = [torch.randn(2) for _ in range(8)]


def opened(model: nn.Module, optimizers: Any, **settings: Any) -> hp.Session:
    return hp.Session(model, optimizers, DATA, global_batch=4, micro_batch=2, **settings)


def test_as_a_plain_loop_does() -> None:
    """One micro-batch per step: the same bits as `zero_grad`, `backward` and `step` of both optimizers in turn."""
    model, one, two = parts()
    plain, first, second = copy.deepcopy(model), *parts()[1:]
    first = torch.optim.Adam(plain[0].parameters(), lr=0.1)
    second = torch.optim.SGD(plain[1].parameters(), lr=0.1)
    seen: list[torch.Tensor] = []

    def left(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch)
        return (model[0](batch) - model[1](batch)).square().mean()

    with hp.Session(model, [one, two], DATA, global_batch=4, micro_batch=4) as session:
        for step in session.steps(5):
            step.run(left)
            step.run(lambda batch: (model[0](batch) + model[1](batch)).abs().mean(), optimizer=two)
            batch = seen[-1]
            for optimizer, loss in (
                (first, lambda b: (plain[0](b) - plain[1](b)).square().mean()),
                (second, lambda b: (plain[0](b) + plain[1](b)).abs().mean()),
            ):
                optimizer.zero_grad()
                loss(batch).backward()
                optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_mistakes_are_said_in_words() -> None:
    model, one, two = parts()

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return model[0](batch).mean() + model[1](batch).mean()

    with pytest.raises(TrainingError, match=r"step 1 was run 1 of 2 times: .* once for each of them"):
        for step in opened(model, [one, two]).steps(2):
            step.run(loss)
    with pytest.raises(TrainingError, match=r"run 1 of the step names a SGD, which has run 2 of the step"):
        next(opened(model, [one, two]).steps(1)).run(loss, optimizer=two)
    with pytest.raises(TrainingError, match="which hp.Session was not given"):
        next(opened(model, one).steps(1)).run(loss, optimizer=two)
    step = next(opened(model, [one, two]).steps(1))
    step.run(loss), step.run(loss)
    with pytest.raises(TrainingError, match="step 1 was run 2 times already"):
        step.run(loss)
    with pytest.raises(SpecError, match="2 parameters of the model in two of the optimizers"):
        opened(model, [one, torch.optim.SGD(model[0].parameters(), lr=0.1)])
    with pytest.raises(SpecError, match="an empty list"):
        opened(model, [])


def test_an_impure_second_loss_is_found() -> None:
    model, one, two = parts()
    calls = 0

    def impure(batch: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return model[1](batch).mean() * calls

    step = next(opened(model, [one, two]).steps(1))
    step.run(lambda batch: model[0](batch).square().mean())
    with pytest.raises(TrainingError, match="calls"):
        step.run(impure)


def test_a_checkpoint_holds_all_optimizers(tmp_path: Any) -> None:
    digests = []
    for steps in ((6,), (3, 6)):
        for planned in steps:
            model, one, two = parts()
            with opened(model, [one, two], checkpoint=str(tmp_path / str(len(steps)))) as session:
                for step in session.steps(planned):
                    step.run(lambda batch, model=model: model[0](batch).square().mean())
                    step.run(lambda batch, model=model: (model[1](batch) - 1).square().mean())
        assert session.step == 6
        digests.append(session.digest())
    assert digests[0] == digests[1]
