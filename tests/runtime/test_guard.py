"""The guard in real jobs: what cannot be right stops or is left out, alike on every member, whoever joins or leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.policy.recovery import has_pairs
from tests.runtime.conftest import TRAIN, Run, Submit
from tests.runtime.test_faults import asked

QUICK = {"PAUSE_S": "0"}


def guarded(settings: str, source: str = TRAIN) -> str:
    return source.replace("scheduler=scheduler)", f"scheduler=scheduler, guard=hp.Guard({settings}))")


def stages(run: Run) -> list[tuple[str, str]]:
    return [(e.data["cause"], e.data["stage"]) for e in run.of_kind("incident.stage")]


def test_nan_stops_the_job_and_names_step_micro_batch_and_rank(job: Submit) -> None:
    run = job(asked("nan", 7, 1, guarded("")))
    view = run.finish("failed")
    assert "TrainingError on rank" in view["reason"]
    assert "the gradient of step 7 is not finite, that of micro-batch 3 is not: the job stops" in view["reason"]
    assert "(micro-batch 3 was computed by rank 1 on node-" in view["reason"]
    assert view["step"] == 6
    assert stages(run) == [("non-finite gradient", "detected"), ("non-finite gradient", "diagnosed")]
    assert view["incidents"][0]["rank"] == 1 and view["incidents"][0]["node"].startswith("node-")


def test_a_gradient_alone_that_is_not_finite_is_located(job: Submit) -> None:
    infinite_slope = (
        "    if session.step == 6 and session.rank == 2:\n"
        "        loss = loss + (model[0].weight * 0).abs().sqrt().sum()\n"
    )
    source = guarded("non_finite='skip'").replace(
        "    return nn.functional.mse_loss(model(inputs).squeeze(-1), targets)\n",
        f"    loss = nn.functional.mse_loss(model(inputs).squeeze(-1), targets)\n{infinite_slope}    return loss\n",
    )
    run = job(source, env=QUICK)
    run.finish()
    (skipped,) = [e.data for e in run.of_kind("step.committed") if "skipped" in e.data]
    assert skipped["step"] == 7 and math.isfinite(skipped["loss"])
    assert "the gradient of step 7 is not finite, that of micro-batches 6, 7 is not" in skipped["skipped"]
    assert stages(run) == [("non-finite gradient", s) for s in ("detected", "diagnosed", "repaired", "resumed")]
    assert run.view["incidents"][0]["rank"] == 2


def test_skipped_steps_are_skipped_by_whoever_joins_and_replays(job: Submit) -> None:
    """Spikes in many steps, a kill among them: the newcomer gets what the guard has seen, and replays it as it was.

    They are in steps of which no micro-batch is repeated: a spike is asked of one member, and no repetition has it.
    """
    spikes = [step for step in range(7, 23) if not has_pairs(step)]
    source = guarded("warm_up=4, window=8, patience=40")
    for step in spikes:
        source = asked("spike", step, 0, source)
    calm = job(source, nodes=1, spares=0, env=QUICK)
    calm.finish()
    run = job(source, env={"PAUSE_S": "0.02"})
    run.until_step(8)
    run.kill(1)
    run.finish()
    run.same_as(calm)
    for found in (calm, run):
        skipped = {e.data["step"]: e.data["skipped"] for e in found.of_kind("step.committed") if "skipped" in e.data}
        assert set(skipped) == set(spikes), found.story()
        assert "highest in micro-batch 0" in skipped[9]
    assert {cause for cause, _ in stages(run)} == {"loss spike", "process killed"}


def test_without_a_guard_a_loss_that_is_not_finite_stops_the_job(job: Submit) -> None:
    run = job(asked("nan", 7, 1), env=QUICK)
    view = run.finish("failed")
    assert "the loss of step 7 is not finite, that of micro-batch 3 is not: the job stops" in view["reason"]
    assert "Where all targets of a micro-batch are ignored" in view["reason"]
    assert "the job stops (micro-batch 3 was computed by rank 1 on node-" in view["reason"]
    assert view["step"] == 6
    assert stages(run) == [("non-finite loss", "detected"), ("non-finite loss", "diagnosed")]


def test_who_asks_for_it_trains_with_what_is_not_finite_and_it_is_said(job: Submit) -> None:
    run = job(asked("nan", 7, 0, guarded("non_finite='ignore'")), nodes=1, spares=0, env=QUICK)
    view = run.finish()
    assert view["step"] == 24 and view["loss"] is None
    warnings = [w["text"] for w in view["warnings"]]
    assert len(warnings) == 1 and "the loss of step 7 is not finite" in warnings[0] and "hp.Guard" in warnings[0]


def test_a_micro_batch_whose_targets_are_all_masked() -> None:
    """As it comes of padding: the mean over no target is 0/0, and the loss of the whole step is NaN."""
    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    masked = {2}
    data = [(torch.randn(4), torch.tensor(-100 if i in masked else i % 5)) for i in range(8)]
    settings: dict[str, Any] = {"global_batch": 8, "micro_batch": 1}

    def mean(batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def safe(batch: Any) -> torch.Tensor:
        count = batch[1].ne(-100).sum().clamp(min=1)
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum") / count

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    session = hp.Session(model, optimizer, data, **settings)
    with pytest.raises(
        TrainingError, match=r"that of micro-batch \d is not: the job stops.* Where all targets of a micro-batch"
    ):
        next(session.steps(1)).run(mean)
    assert torch.equal(before, model.weight)
    for loss_fn, guard, finite in ((safe, None, True), (mean, hp.Guard(non_finite="ignore"), False)):
        session = hp.Session(model, optimizer, data, guard=guard, **settings)
        assert math.isfinite(next(session.steps(1)).run(loss_fn)) == finite


def alone(
    guard: hp.Guard, steps: int = 6, bad: int = 3, factor: float = math.nan
) -> tuple[list[float], nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    data = [(torch.randn(4), torch.randn(1)) for _ in range(20)]
    settings = {"global_batch": 4, "micro_batch": 2, "guard": guard, "scheduler": scheduler}
    with hp.Session(model, optimizer, data, **settings) as session:  # type: ignore[arg-type]

        def loss_fn(batch: Any) -> torch.Tensor:
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            return loss * factor if session.step + 1 == bad else loss

        losses = []
        for step in session.steps(steps):
            before = model.weight.detach().clone()
            losses.append(step.run(loss_fn))
            assert torch.equal(before, model.weight.detach()) == (step.number == bad)
    return losses, model, scheduler


@pytest.mark.parametrize("bad", [1, 3])
def test_alone_a_skipped_step_leaves_the_model_and_moves_the_schedule(bad: int) -> None:
    losses, _, scheduler = alone(hp.Guard(non_finite="skip"), bad=bad)
    assert [math.isnan(loss) for loss in losses] == [step == bad for step in range(1, 7)]
    assert scheduler.last_epoch == 6


def test_alone_it_stops_before_the_update() -> None:
    with pytest.raises(TrainingError, match="step 3 is not finite, that of micro-batches 0, 1 is not: the job stops"):
        alone(hp.Guard())


def test_a_spike_can_stop_too() -> None:
    with pytest.raises(TrainingError, match="the loss of step 5 is .* the median of the 4 before it"):
        alone(hp.Guard(loss_spike="stop", warm_up=3, window=4), bad=5, factor=1e4)
