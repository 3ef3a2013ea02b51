"""session.evaluate: the same bits for any number of members, and when members are lost and join in an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from tests.runtime.conftest import Run, Submit

EVALUATE = """
import os, pathlib, signal, time, torch, jupyter_hyperpod as hp
from torch import nn

flags = pathlib.Path({flags!r})
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(37, 4)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
calls, best, history = 0, float("inf"), []

def once(name):
    try: os.close(os.open(flags / name, os.O_CREAT | os.O_EXCL)); return True
    except FileExistsError: return False

def judge(batch):
    assert not model.training and not torch.is_grad_enabled()
    time.sleep(0.004)
    if session.step in (4, 6) and session.world_size > 1 and session.rank == 1 and once(f"kill at {{session.step}}"):
        os.kill(os.getpid(), signal.SIGKILL)
    found = model(batch[0])
    return {{"loss": nn.functional.mse_loss(found, batch[1]), "high": ((found > 0).sum(), len(found))}}

with hp.Session(model, optimizer, data, global_batch=12, micro_batch=2, seed=1) as session:
    for epoch in {epochs}:
        first = session.evaluate(judge, data, micro_batch=3, name="first")
        for step in session.steps(4):
            before = session.evaluate(judge, data, 5, name="before")
            step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
            assert model.training
            after = session.evaluate(judge, data, 5)
            history.append((before["loss"], after["loss"], after["high"]))
        result = session.evaluate(lambda batch: (judge(batch)["high"][0], 1), data, 4, name="outer")
        best = min(best, result, first["loss"])
        history.append(result)
print(best, history, session.digest())
"""


def logged(run: Run) -> dict[tuple[int, str], float]:
    """The journaled metrics, by step and name."""
    events = run.of_kind("metric.logged")
    return {(event.data["step"], name): value for event in events for name, value in event.data["values"].items()}


FIRST = '        first = session.evaluate(judge, data, micro_batch=3, name="first")\n'


@pytest.mark.parametrize("epochs", ["session.epochs(3)", "range(3)"])
def test_kills_and_joins_in_evaluations_change_no_bit(job: Submit, tmp_path: Path, epochs: str) -> None:
    source = EVALUATE.replace("{epochs}", epochs)
    if epochs == "range(3)":  # there the members have not met before the first step
        source = source.replace(FIRST, "").replace('result, first["loss"]', "result")
    alone = job(source.format(flags=str(tmp_path / "none")), nodes=1, spares=0)
    alone.finish()
    expected = set(alone.text().values())
    assert len(expected) == 1 and "nan" not in str(expected)
    (tmp_path / "flags").mkdir()
    run = job(source.format(flags=str(tmp_path / "flags")), nodes=3, spares=1)
    run.finish()
    assert {path.name for path in (tmp_path / "flags").iterdir()} == {"kill at 4", "kill at 6"}, "nobody was killed"
    assert set(run.text().values()) == expected, run.story()
    assert run.view["digest"] == alone.view["digest"], run.story()
    joined = {m["member"] for e in run.of_kind("generation.formed") for m in e.data["members"]}
    assert len(joined) > 3, "nobody joined"
    assert logged(run) == logged(alone) and {(4, "eval.loss"), (12, "outer")} <= logged(run).keys()


def test_growing_while_evaluations_take_most_of_the_time(job: Submit, tmp_path: Path) -> None:
    for step in (4, 6):
        (tmp_path / f"kill at {step}").touch()  # so nobody is killed
    source = EVALUATE.format(flags=str(tmp_path), epochs="session.epochs(3)")
    alone = job(source, nodes=1, spares=0)
    alone.finish()
    run = job(source, nodes=1, elastic="1:3", spares=0)
    run.until_step(2)
    run.scale(3)
    run.finish()
    assert max(event.data["world_size"] for event in run.of_kind("step.committed")) == 3, run.story()
    assert set(run.text().values()) == set(alone.text().values()), run.story()
    assert run.view["digest"] == alone.view["digest"]


def test_an_evaluation_on_rank_0_alone_is_refused(job: Submit) -> None:
    source = EVALUATE.format(flags="/nowhere", epochs="session.epochs(1)")
    source = source.replace("before = ", "before = {'loss': 0} if not session.is_main else ")
    view = job(source, nodes=2).finish("failed")
    assert "call session.evaluate() on every member" in view["reason"]


ONLY = """
import os, pathlib, signal, time, torch, jupyter_hyperpod as hp

flag = pathlib.Path({flag!r})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))

def judge(batch):
    time.sleep(0.01)
    if session.rank == 1 and flag.exists():
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return model(batch[0]).square().mean()

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, seed=1) as session:
    for _ in session.steps(0):
        pass
    print(session.evaluate(judge, data, micro_batch=1))
"""


def test_a_job_that_only_evaluates_survives_a_kill(job: Submit, tmp_path: Path) -> None:
    alone = job(ONLY.format(flag=str(tmp_path / "none")), nodes=1, spares=0)
    alone.finish()
    flag = tmp_path / "kill"
    flag.touch()
    run = job(ONLY.format(flag=str(flag)), nodes=3, spares=1)
    run.finish()
    assert not flag.exists() and run.of_kind("member.lost"), run.story()
    assert set(run.text().values()) == set(alone.text().values()), run.story()


class Alone:
    """A session in this process."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = [(torch.tensor([float(i), 1.0]), torch.tensor([1.0])) for i in range(5)]
        self.session = hp.Session(self.model, optimizer, self.data, global_batch=4, micro_batch=2)

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])


def test_means_are_weighted_and_modes_are_restored() -> None:
    alone = Alone()
    with alone.session as session:
        for step in session.steps(1):
            alone.model[1].eval()
            step.run(alone.loss)
            number = session.evaluate(lambda batch: batch[0][:, 0].mean(), alone.data, 2)
            assert number == (0 + 1 + 2 + 3 + 4) / 5
            pair = session.evaluate(lambda batch: (batch[0][:, 0].sum(), 2.0), alone.data, 2)
            assert pair == 10 / 6
            found = session.evaluate(lambda batch: {"b": 1, "a": (float("inf"), 1)}, alone.data)
            assert found == {"a": float("inf"), "b": 1.0}
            loader = torch.utils.data.DataLoader(alone.data, batch_size=3)  # type: ignore[arg-type]
            assert session.evaluate(lambda batch: {"size": (len(batch[0]), 1)}, loader) == {"size": 2.5}
            assert alone.model[0].training and not alone.model[1].training
            before = torch.random.get_rng_state()
            assert session.evaluate(lambda batch: torch.rand(()), alone.data) == session.evaluate(
                lambda batch: torch.rand(()), alone.data
            )
            assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: "text", "returned a str"),
        (lambda batch: torch.ones(2), "several numbers"),
        (lambda batch: (1.0, 0.0), "add up to 0"),
        (lambda batch: {str(len(batch[0])): 1.0}, "return the same names"),
    ],
)
def test_what_has_no_mean_is_refused(function: Any, words: str) -> None:
    alone = Alone()
    with pytest.raises(TrainingError, match=words), alone.session as session:
        for step in session.steps(1):
            step.run(alone.loss)
            session.evaluate(function, alone.data)


def test_evaluations_belong_between_steps() -> None:
    alone = Alone()
    with alone.session as session:
        with pytest.raises(TrainingError, match="before the first step"):
            session.evaluate(alone.loss, alone.data)
        for step in session.steps(1):
            with pytest.raises(TrainingError, match="in a step"):
                step.run(lambda batch: session.evaluate(alone.loss, alone.data))
            with pytest.raises(TrainingError, match="changed the model"):
                session.evaluate(lambda batch: alone.model[0].weight.mul_(2).sum(), alone.data)
            with pytest.raises(SpecError):
                session.evaluate(alone.loss, iter(alone.data))
            step.run(alone.loss)
    with pytest.raises(TrainingError, match="after the session"):
        session.evaluate(alone.loss, alone.data)
