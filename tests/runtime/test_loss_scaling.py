"""A GradScaler that is given to the session: the same bits as torch's own loop, and through faults."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from tests.runtime.conftest import Run, Submit

# The scale is raised until the gradient overflows in float16, again and again; each kind of clipping; running
# statistics, which an overflow does not undo; a plateau of a metric.
OVERFLOWS = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1))
groups = [{"params": model[:2].parameters(), "max_grad_norm": 0.3}, {"params": model[2:].parameters()}]
optimizer = torch.optim.AdamW(groups, lr=1e-2)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_factor=3.0, growth_interval=2)
samples = torch.randn(60, 4)
data = [(x, x.sum(0, keepdim=True).sin()) for x in samples]

def loss_fn(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
    return loss, {"half": loss / 2}

settings = dict(global_batch=16, micro_batch=2, seed=3, audit=1.0, scheduler=plateau, scheduler_metric="half")
with hp.Session(model, optimizer, data, scaler=scaler, max_grad_norm=0.5, max_grad_value=0.1, **settings) as session:
    for step in session.steps(24):
        step.run(loss_fn)
print("kept", scaler.state_dict(), optimizer.param_groups[0]["lr"].hex())
"""


def skips(run: Run) -> set[int]:
    return {event.data["step"] for event in run.of_kind("step.committed") if "skipped" in event.data}


@pytest.mark.parametrize("collectives", ["host", "gloo"])
def test_every_member_is_lost_once(job: Submit, collectives: str) -> None:
    calm = job(OVERFLOWS, nodes=1)
    calm.finish()
    skipped = skips(calm)
    assert 4 < len(skipped) < 14 and 1 in skipped, skipped
    run = job(OVERFLOWS, env={"PAUSE_S": "0.03"}, collectives=collectives)
    for step in (3, 8, 14):
        run.until_step(step)
        run.kill(0)
        run.until_world(3)
    run.finish()
    run.same_as(calm)
    assert set(run.text().values()) == set(calm.text().values()) and "'scale': " in run.text().popitem()[1]
    assert skips(run) == skipped


torch.manual_seed(1)
DATA = [(x, x.sum(0, keepdim=True)) for x in torch.randn(32, 4)]


def made(**settings: Any) -> tuple[nn.Module, Any, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    settings = {"init_scale": 3.0e7, "growth_factor": 2.7, "backoff_factor": 0.3, "growth_interval": 2} | settings
    return model, optimizer, schedule, torch.amp.GradScaler("cpu", **settings)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


def opened(model: nn.Module, optimizer: Any, scaler: Any, **settings: Any) -> hp.Session:
    sizes = {"global_batch": 8, "micro_batch": 8, "order": "sequential"}
    return hp.Session(model, optimizer, DATA, scaler=scaler, **(sizes | settings))


def batches(steps: int) -> Any:
    loader = torch.utils.data.DataLoader(DATA, batch_size=8)
    return [batch for _ in range(-(-steps // len(loader))) for batch in loader][:steps]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_as_the_loop_in_the_documentation_of_torch() -> None:
    """One micro-batch per step: the same bits, whether a step overflows or not."""
    model, optimizer, schedule, scaler = made()
    scales, threads = [], torch.get_num_threads()
    with opened(model, optimizer, scaler, scheduler=schedule, max_grad_norm=0.5) as session:
        for step in session.steps(30):
            loss = step.run(lambda batch: loss_of(model, batch))
            scales.append(scaler.get_scale())
    plain, optimizer, schedule, theirs = made()
    expected = []
    torch.set_num_threads(1)  # as in the session: the norm of a gradient depends on it
    for batch in batches(30):
        optimizer.zero_grad()
        value = loss_of(plain, batch)
        theirs.scale(value).backward()
        theirs.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        theirs.step(optimizer)
        theirs.update()
        schedule.step()
        expected.append(theirs.get_scale())
    torch.set_num_threads(threads)
    assert scales == expected and len(set(expected)) > 8 and scaler.state_dict() == theirs.state_dict()
    assert loss == value.item()
    for ours, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, other)


def test_several_optimizers_share_a_scale() -> None:
    """One overflows, and the other one is stepped; after both the scale is lowered once, as in torch's example."""
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-3) for part in model]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    weights = [part.weight.detach().clone() for part in model]
    with opened(model, optimizers, scaler) as session:
        for step in session.steps(1):
            step.run(lambda batch: (model[0](batch[0]) * 1e35).mean())  # finite itself
            assert scaler.get_scale() == 2.0**20
            assert step.run(lambda batch: model[1](batch[0]).square().mean()) > 0
            assert scaler.get_scale() == 2.0**19
    assert torch.equal(weights[0], model[0].weight) and not torch.equal(weights[1], model[1].weight)


def test_what_the_session_does_itself_is_refused_meanwhile() -> None:
    model, optimizer, _, scaler = made()
    off = torch.amp.GradScaler("cpu", enabled=False)
    for one in (scaler, off):
        with opened(model, optimizer, one) as session:
            for step in session.steps(1):
                step.run(lambda batch: loss_of(model, batch))
                for call in (lambda: one.step(optimizer), lambda: one.unscale_(optimizer), lambda: one.update()):  # noqa: B023
                    with pytest.raises(TrainingError, match="and the session does that in step.run"):
                        call()
        assert not {"step", "unscale_", "update"} & vars(one).keys(), "whoever uses it elsewhere finds it as it was"


def test_other_scalers_are_refused() -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    model, optimizer, _, scaler = made()
    for other, words in (
        ([scaler], "scaler is a list; expected one torch.amp.GradScaler"),
        (ShardedGradScaler("cpu"), "a ShardedGradScaler, which has a unscale_.. of its own"),
    ):
        with pytest.raises(SpecError, match=words):
            opened(model, optimizer, other)
    half = nn.Linear(4, 1).half()
    with pytest.raises(SpecError, match="parameters are float16, and a GradScaler does not unscale"):
        opened(half, torch.optim.SGD(half.parameters(), lr=0.1), scaler)


def test_a_loss_that_is_not_finite_is_no_overflow() -> None:
    """The guard decides about it; the scale is lowered, as torch does it."""
    model, optimizer, _, scaler = made()
    with opened(model, optimizer, scaler) as session, pytest.raises(TrainingError, match="the loss of step 1 is not"):
        for step in session.steps(1):
            step.run(lambda batch: loss_of(model, batch) * float("nan"))
    with opened(model, optimizer, scaler, guard=hp.Guard(non_finite="skip")) as session:
        before = scaler.get_scale(), copy.deepcopy(model.state_dict())
        for step in session.steps(1):
            step.run(lambda batch: loss_of(model, batch) * float("nan"))
    assert scaler.get_scale() < before[0]
    assert all(torch.equal(value, before[1][name]) for name, value in model.state_dict().items())


def test_a_scale_that_cannot_be_lowered_any_more_ends_the_run() -> None:
    model, optimizer, _, scaler = made(init_scale=2e-38)

    def loss(batch: Any) -> torch.Tensor:
        return model(batch[0]).mean() + (model[0].bias * 0).abs().sqrt().sum()  # the gradient of sqrt at 0 is no number

    with pytest.raises(TrainingError, match="step 1 is not finite although the loss scale has fallen to 2e-38"):
        with opened(model, optimizer, scaler) as session:
            for step in session.steps(1):
                step.run(loss)


def trained(steps: int, checkpoint: str | None) -> tuple[str, dict[str, Any]]:
    model, optimizer, _, scaler = made()
    with opened(model, optimizer, scaler, checkpoint=checkpoint) as session:
        for step in session.steps(steps):
            step.run(lambda batch: loss_of(model, batch))
    return session.digest(), scaler.state_dict()


@pytest.mark.filterwarnings("ignore:.*is not loaded:RuntimeWarning")
def test_a_checkpoint_holds_the_scale(tmp_path: Any) -> None:
    whole = trained(6, None)
    assert trained(3, str(tmp_path)) != whole == trained(6, str(tmp_path))
    with pytest.raises(SpecError, match="scaler GradScaler, expected None"):
        with opened(*made()[:2], None, checkpoint=str(tmp_path)) as session:
            next(session.steps(1))
