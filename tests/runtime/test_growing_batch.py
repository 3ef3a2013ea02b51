"""A global batch that follows the members: data, learning rates and state, and a job repeated from its record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import data as torch_data

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.runtime.data.order import Shuffled

from .conftest import Submit

SCHEDULE = {1: 4, 4: 12, 6: 8}
BATCHES = [4, 4, 4, 12, 12, 8, 8]


def samples(count: int = 20) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, generator=generator), torch.randn(1, generator=generator)) for _ in range(count)]


class Session:
    """A small session that keeps what it saw."""

    def __init__(self, model: nn.Module | None = None, data: Any = None, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.optimizer = settings.pop("optimizer", None) or torch.optim.AdamW(self.model.parameters(), lr=0.1)
        sizes = {"global_batch": 4, "micro_batch": 2, "seed": 3} | settings
        self.session = hp.Session(self.model, self.optimizer, data or samples(), **sizes)
        self.losses: list[float] = []
        self.digest = ""

    def loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def run(self, steps: int = len(BATCHES)) -> Session:
        with self.session as session:
            for step in session.steps(steps):
                self.losses.append(step.run(self.loss))
            self.digest = session.digest()
        return self


def test_each_sample_is_taken_once_in_order_and_rates_follow_the_rule() -> None:
    torch.manual_seed(0)
    model, taken = nn.Linear(1, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    twin = nn.Linear(1, 1)
    twin.load_state_dict(model.state_dict())
    rate, order = 0.1, Shuffled(3, 40)
    grow = hp.GrowBatch("sqrt", warmup_steps=2, schedule=SCHEDULE)
    settings = {"global_batch": 4, "micro_batch": 2, "seed": 3, "scheduler": scheduler, "grow": grow}
    factors = [1, 1, 1, (1 + 3**0.5) / 2, 3**0.5, 2**0.5, 2**0.5]
    with hp.Session(model, optimizer, torch.arange(40.0).unsqueeze(1), **settings) as session:  # type: ignore[arg-type]

        def loss(batch: torch.Tensor) -> torch.Tensor:
            taken.extend(batch.flatten().tolist())
            return model(batch / 40).square().mean()

        for step in session.steps(len(BATCHES)):
            del taken[:]
            step.run(loss)
            first, count = sum(BATCHES[: step.index]), BATCHES[step.index]
            expected = [float(order.at(position)) for position in range(first, first + count)]
            assert set(taken) == set(expected), "some micro-batches of the first steps are computed twice"
            assert session.samples == first + count
            gradients = torch.autograd.grad(
                twin(torch.tensor(expected).unsqueeze(1) / 40).square().mean(), [*twin.parameters()]
            )
            with torch.no_grad():
                for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                    parameter -= rate * factors[step.index] * gradient
            rate *= 0.5 if step.index % 2 else 1.0
            assert optimizer.param_groups[0]["lr"] == pytest.approx(rate), "it does not compound"
            assert torch.allclose(model.weight, twin.weight, atol=1e-6)
        assert session.batches == SCHEDULE


def test_a_batch_that_could_grow_and_does_not_changes_no_bit() -> None:
    """Running statistics and metrics have room for more micro-batches than the steps have."""
    found = []
    for grow in (None, hp.GrowBatch("linear", schedule={1: 4, 100: 32}), hp.GrowBatch("linear", 1, 64)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        one = Session(model, grow=grow, max_grad_norm=0.5).run()
        found.append((one.losses, [tensor.tolist() for tensor in model.state_dict().values()]))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["shuffled", "sampler", "workers"])
def test_a_checkpoint_in_the_midst_goes_on_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    grow = hp.GrowBatch("linear", warmup_steps=3, schedule=SCHEDULE)
    weights = [float(index + 1) for index in range(20)]
    more: dict[str, Any] = {"workers": 2} if kind == "workers" else {}
    if kind == "sampler":
        more["order"] = torch_data.WeightedRandomSampler(weights, 10)
    whole = Session(grow=grow, **more).run()
    keep = hp.Checkpoint(str(tmp_path / "kept"), every_steps=1, at_end=True)
    first = Session(grow=grow, checkpoint=keep, **more).run(4)
    second = Session(grow=grow, checkpoint=keep, **more).run()
    assert second.losses and first.losses[: len(BATCHES) - len(second.losses)] + second.losses == whole.losses
    assert second.digest == whole.digest and second.session.batches == SCHEDULE
    with pytest.warns(RuntimeWarning, match="grows True"), pytest.raises(SpecError, match="grows True"):
        Session(checkpoint=keep, **more).run()


def loader(**settings: Any) -> Callable[[], Any]:
    return lambda: torch_data.DataLoader(samples(), **settings)  # type: ignore[arg-type]


class Streamed(torch_data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(samples())


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (Streamed, {}, "the data is a stream, which is read in blocks"),
        (samples, {"order": "lanes"}, 'order="lanes" cuts the data'),
        (loader(drop_last=True, batch_size=4), {}, "write drop_last=False"),
    ],
)
def test_data_that_cannot_be_cut_into_other_batches_is_refused(data: Any, settings: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Session(data=data(), grow=hp.GrowBatch("linear", 1, 16), **settings)


def test_optimizers_and_lanes_that_do_not_fit_are_refused() -> None:
    model, grow = nn.Linear(4, 1), hp.GrowBatch("linear", schedule=SCHEDULE)

    class OwnRate(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["lr"] = 0.5
            return super().step(closure)

    with pytest.raises(SpecError, match="the session has a list of optimizers: give it one"):
        Session(model, optimizer=[torch.optim.SGD(model.parameters())] * 2, grow=grow)
    with pytest.raises(TrainingError, match=r"OwnRate.step\(\) sets the learning rate itself"):
        Session(model, optimizer=OwnRate(model.parameters(), lr=0.1), grow=grow).run()
    constant = hp.GrowBatch("constant", schedule=SCHEDULE)
    Session(model, optimizer=OwnRate(model.parameters(), lr=0.1), grow=constant).run()
    with pytest.raises(TrainingError, match="number of micro-batches, each of which has a lane"):
        Session(grow=grow).session.lanes(h=torch.zeros(1))
    plain = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    del optimizer.param_groups[0]["lr"]
    with pytest.raises(SpecError, match="has no lr"):
        Session(plain, optimizer=optimizer, grow=grow)


# ---- in a job -------------------------------------------------------------------------------------------------

GROWS = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
samples = torch.randn(50, 8)
data = [(x, x.sum().sin()) for x in samples]
pause_s = float(os.environ.get("PAUSE_S", "0"))

def loss_fn(batch):
    time.sleep(pause_s)
    return nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1])

grow = hp.GrowBatch("linear", warmup_steps=5, {how})
settings = dict(global_batch=8, micro_batch=2, seed=3, max_grad_norm=1.0, scheduler=scheduler, grow=grow)
with hp.Session(model, optimizer, data, **settings) as session:
    for epoch in range(6):  # a newcomer runs what belongs to the epochs before
        for step in session.steps(10):
            loss = step.run(loss_fn)
    print("record", session.batches, session.samples)
"""


def test_a_job_that_grew_shrank_and_was_killed_is_repeated_from_its_record(job: Submit) -> None:
    run = job(GROWS.replace("{how}", "base_members=1, most=32"), nodes=2, elastic="1:4", env={"PAUSE_S": "0.01"})
    run.until_step(12)
    run.scale(4)
    run.until_world(4)
    run.until_step(run.view["step"] + 4)
    run.kill(0)
    run.until_event("incident.stage", stage="rejoined")
    run.until_step(run.view["step"] + 3)
    run.scale(3)
    run.until_world(3)
    run.until_step(run.view["step"] + 2)
    run.kill(1)
    run.finish()
    decided = [e.data for e in run.of_kind("decision.made") if e.data["policy"] == "batch"]
    record = {int(step): batch for step, batch in decided[-1]["value"].items()}
    assert {8, 16, 24, 32} >= set(record.values()) >= {16, 32} and record[1] == 16, run.story()
    committed = {e.data["step"]: e.data for e in run.of_kind("step.committed")}
    assert {data["samples"] for data in committed.values()} >= {16, 32}
    assert max(data["rate_factor"] for data in committed.values()) == 4.0
    assert audit(run.events).sound, audit(run.events).sentence
    shown = {step: batch for step, batch in record.items() if step <= 60}
    assert f"record {shown} {sum(data['samples'] for data in committed.values())}" in run.text()[0]
    again = job(GROWS.replace("{how}", f"schedule={shown}"), nodes=1)
    again.finish()
    assert again.losses() == run.losses() and again.view["digest"] == run.view["digest"], run.story()
    factors = {e.data["step"]: e.data["rate_factor"] for e in again.of_kind("step.committed")}
    assert factors == {step: data["rate_factor"] for step, data in committed.items()}
