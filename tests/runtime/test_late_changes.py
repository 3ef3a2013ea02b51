"""What the run changes late, where neither its first steps nor its source show it: carried, or refused by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from jupyter_hyperpod.runtime.program.carried import Carried
from jupyter_hyperpod.runtime.program.comparison import LONGEST_S, Comparison
from jupyter_hyperpod.runtime.program.heap import Heap
from jupyter_hyperpod.runtime.program.walk import Walk, path_of
from tests.runtime.conftest import Run, Submit

CELL = """
import dataclasses, heapq, os, threading, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 1.0

class Stage:
    def __init__(self, weight):
        self.weight = weight

class Decay:
    def __init__(self):
        self.scale = 1.0
    def __call__(self, loss):
        self.scale *= 0.8

config, decay, best = Config(), Decay(), []
stages = [Stage(1.0), Stage(0.5), Stage(2.0)]
stage = stages[0]
view, done, factor = None, threading.Event(), 1.0
hooks = {"end": [decay]}

def loss_function(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    top = best[0] if best else 0.0
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * (0.5 if done.is_set() else globals()["factor"])
    return stage.weight * config.scale * decay.scale * loss + 0.01 * top + (0.0 if view is None else 0.1 * view.sum())

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for epoch in session.epochs(25):
        for step in session.steps(5):
            loss = step.run(loss_function)
        CHANGE
print(config.scale, decay.scale, best)
"""
CHANGES = """config = dataclasses.replace(config, scale=config.scale * 0.9)
        stage = stages[min(epoch, 2)]
        view = model.weight.detach()
        for hook in hooks["end"]: hook(loss)
        heapq.heappush(best, -loss)
        factor = 0.99 * factor
        if epoch == 3: done.set()"""


def change(cell: str) -> str:
    return CELL.replace("CHANGE", cell)


def joined(job: Submit, cell: str, by: str, nodes: int, most: int, joins_after: int) -> Run:
    """The cell on several nodes, where members join because there are ``most``, or because one is killed."""
    run = job(cell, nodes=nodes, elastic=f"1:{most}", pause_s=0.04)
    run.until_step(joins_after)
    if by == "growth":
        run.scale(most)
        run.until_world(most)
    else:
        run.kill(rank=0)
        run.until_made_good(losses=1, size=nodes)
    run.full_speed()
    run.finish()
    assert len(run.of_kind("generation.formed")) > 1, run.story()
    return run


@pytest.mark.timeout(180)
@pytest.mark.parametrize("by", ["growth", "kill"])
def test_what_changes_late_reaches_members_that_join_later(
    job: Submit, undisturbed: Callable[[str], Run], by: str
) -> None:
    alone, run = undisturbed(change(CHANGES)), joined(job, change(CHANGES), by, nodes=2, most=4, joins_after=17)
    assert run.view["digest"] == alone.view["digest"] and set(run.text().values()) == set(alone.text().values())


GROUPS = """
import os, time, torch, jupyter_hyperpod as hp

def made():
    g = torch.Generator().manual_seed(3)  # of the name that a group has below
    return [(torch.randn(4, generator=g), torch.randn(1, generator=g)) for _ in range(60)]

def make_ramp():
    count = 0
    def ramp():
        nonlocal count
        count += 1
        return 0.1 / (1 + 0.02 * count)
    return ramp

data, ramp = made(), make_ramp()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with hp.Session(model, optimizer, data, global_batch=12, micro_batch=2) as session:
    for step in session.steps(60):
        loss = step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
        for g in optimizer.param_groups:
            g["lr"] = ramp()
        if step.number == 10:
            last = optimizer.param_groups[-1]
        if step.number > 10:
            last["momentum"] *= 0.99
        time.sleep(float(os.environ.get("PAUSE_S", "0")))
print(loss.hex(), optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"])
"""


@pytest.mark.timeout(180)
def test_a_variable_that_holds_a_group_of_the_optimizer_holds_that_of_the_newcomer(job: Submit) -> None:
    """Whatever other variables of its name there are."""
    alone = job(GROUPS, nodes=1)
    alone.finish()
    run = job(GROUPS, nodes=3, elastic="2:4", env={"PAUSE_S": "0.03"})
    for step, rank in ((15, 0), (35, 1)):
        run.until_step(step)
        run.kill(rank)
        run.until_world(3)
    run.finish()
    assert run.view["digest"] == alone.view["digest"] and set(run.text().values()) == set(alone.text().values())


RING = """ring = Stage(stage.weight * 0.9)
        ring.itself = ring
        stage = ring"""


@pytest.mark.timeout(180)
def test_what_cannot_be_given_is_refused_before_a_member_computes_with_another_value(
    job: Submit, undisturbed: Callable[[str], Run]
) -> None:
    alone = undisturbed(change(RING))
    run = job(change(RING), nodes=2, elastic="1:4", pause_s=0.04)
    run.until_step(22)
    run.scale(3)
    reason = run.finish("failed")["reason"]
    at_the_change = "stage.weight changes from step to step, and a member that joins later cannot be given it"
    assert "does not have what the program has changed before: stage" in reason or at_the_change in reason, run.story()
    assert run.losses().items() <= alone.losses().items(), run.story()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("cell", "state"), [(CHANGES, "succeeded"), (RING, "failed")], ids=["carried", "refused"])
def test_what_changed_late_is_in_checkpoints(
    job: Submit, undisturbed: Callable[[str], Run], tmp_path: Path, cell: str, state: str
) -> None:
    """All members are lost: those that go on have nobody to compare with but the checkpoint."""
    alone = undisturbed(change(cell))
    places = f"micro_batch=4, checkpoint=hp.Checkpoint({str(tmp_path)!r}, every_steps=4)"
    run = job(change(cell).replace("micro_batch=4", places), nodes=2, elastic="1:2", pause_s=0.04)
    run.until_step(22)
    for pid in [run.worker_pid(rank) for rank in range(2)]:
        os.kill(pid, signal.SIGKILL)  # by their pids: a spare takes a rank within milliseconds
    if state == "succeeded":
        run.until_made_good(losses=2, size=2)
        run.full_speed()
    view = run.finish(state)
    assert run.of_kind("checkpoint.loaded"), run.story()
    if state == "succeeded":
        assert view["digest"] == alone.view["digest"] and set(run.text().values()) == set(alone.text().values())
    else:
        assert "does not have what the program had changed there: stage" in view["reason"], run.story()


LEFT = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last, self.aside, self.again, self.loss = torch.nn.Linear(4, 1), 0.0, 0.0, 0.0, 0.0
    def forward(self, x):
        y = self.layer(x)
        self.last = self.again = self.loss = y.mean().item()
        self.aside = (y * y).mean()
        return y

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def loss_function(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) + 0.01 * model.aside

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for step in session.steps(6):
        step.run(loss_function)
        model.again = 0.5 * step.number
print(model.last, model.again, session.loss)
"""


@pytest.mark.timeout(180)
def test_what_each_member_s_last_micro_batch_leaves_is_said_where_the_loop_reads_it(job: Submit) -> None:
    """Not where only the loss function reads it, where the loop sets it, or reads what has the same name elsewhere."""
    run = job(LEFT, nodes=2, elastic="1:2")
    run.finish()
    texts = [event.data["text"] for event in run.of_kind("warning.raised")]
    (said,) = [text for text in texts if text.startswith("each member has another value of")]
    assert "of model.last (line 26): what" in said
    assert all(f"model.{name}" not in said for name in ("aside", "again", "loss")), said


FILLS = """
import os, time, torch, jupyter_hyperpod as hp
from collections import Counter, defaultdict
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses, norms, history, kinds = [], [], defaultdict(list), Counter()

class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def update(self, value):
        self.total += value
        self.count += 1
    @property
    def mean(self):
        return self.total / max(1, self.count)
    def __str__(self):
        return f"{self.mean:.3f}"

meter = Meter()

def loss_function(batch):
    time.sleep(float(os.environ.get("PAUSE_S", 0)))
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    losses.append(loss.item())
    norms.append(batch[0].norm())
    history["loss"].append(loss.item())
    kinds.update([len(batch[0])])
    meter.update(loss.item())
    assert len(norms) < 100_000
    return loss

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(120):
        step.run(loss_function)
        if step.number % 10 == 0:
            print(step.number, meter, meter.mean, sum(losses))
            losses.clear()
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("by", ["growth", "kill"])
def test_what_the_loss_function_fills_stops_no_member_that_joins(
    job: Submit, undisturbed: Callable[[str], Run], by: str
) -> None:
    alone, run = undisturbed(FILLS), joined(job, FILLS, by, nodes=1 if by == "growth" else 2, most=2, joins_after=15)
    assert run.view["digest"] == alone.view["digest"], run.story()


ONCE = """
import functools, os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1), i % 7 + 1) for i in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
start, rate, table, kept = None, None, None, {}

class Anchor:
    weight = None
    def __call__(self):
        if self.weight is None:
            self.weight = model.weight.detach().clone()
        return (model.weight - self.weight).square().sum()
    @functools.cached_property
    def bias(self):
        return model.bias.detach().clone()

anchor = Anchor()

def positions(length):  # grows with what a member has seen, and gives the same
    global table
    if table is None or len(table) < length:
        table = torch.arange(length).float()
    return table[:length].mean()

def loss_function(batch):
    global start, rate
    time.sleep(float(os.environ.get("PAUSE_S", 0)))
    if start is None:
        start = [one.detach().clone() for one in model.parameters()]
        rate = optimizer.param_groups[0]["lr"]
    if not kept:
        kept.update({name: one.detach().clone() for name, one in model.named_parameters()})
    apart = sum((one - first).square().sum() for one, first in zip(model.parameters(), start))
    apart = apart + sum((one - kept[name]).square().sum() for name, one in model.named_parameters())
    apart = apart + anchor() + (model.bias - anchor.bias).square().sum()
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1] + 0.01 * positions(int(batch[2].max())))
    return loss + rate * apart

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(80):
        step.run(loss_function)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("by", ["growth", "kill"])
def test_what_the_loss_function_sets_at_its_first_call_reaches_members_that_join_later(
    job: Submit, undisturbed: Callable[[str], Run], by: str
) -> None:
    alone, run = undisturbed(ONCE), joined(job, ONCE, by, nodes=1 if by == "growth" else 2, most=2, joins_after=15)
    assert run.view["digest"] == alone.view["digest"], run.story()


DECIDES = """
import torch, jupyter_hyperpod as hp
torch.manual_seed(0)

class Cached(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.cache, self.reads = torch.randn(64, 4), {}, 0
    def __len__(self):
        return 64
    def __getitem__(self, index):
        self.reads += 1
        if index not in self.cache:
            self.cache[index] = 2 * self.x[index]
        return self.cache[index], self.x[index].sum()

train, valid = Cached(), Cached()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def loss_function(batch):
    return torch.nn.functional.mse_loss(model(batch[0])[:, 0], batch[1])

def right(batch):
    return (model(batch[0])[:, 0] - batch[1]).abs().sum(), len(batch[1])

with hp.Session(model, optimizer, train, global_batch=16, micro_batch=4) as session:
    for step in session.steps(8):
        loss = step.run(loss_function)
        READ
    error = session.evaluate(right, valid, micro_batch=8, name="error")
print(loss.hex(), error.hex())
"""
READS = {
    "decides": 'if len(train.cache) >= 40: optimizer.param_groups[0]["weight_decay"] = 0.5',
    "is shown": "print(len(train.cache))",
    "is not read": "",
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("read", READS)
def test_a_cache_of_the_data_set_may_not_decide_about_the_training(job: Submit, read: str) -> None:
    """Each member has the samples of its own share there."""
    run = job(DECIDES.replace("READ", READS[read]), nodes=2, elastic="1:2")
    run.until_ended(60)
    said = [
        event.data["text"] for event in run.of_kind("warning.raised") if "train.cache (line 29)" in event.data["text"]
    ]
    assert bool(said) is (read == "is shown"), run.story()
    if read == "decides":
        assert "train.cache (line 29) holds what each member's own share of the data has left" in run.view["reason"]
    else:
        assert run.view["state"] == "succeeded", run.story()


LATER = {**READS, "decides when both are there": READS["decides"].replace("40", "200")}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("read", LATER)
def test_a_job_of_one_member_is_warned_of_it_and_again_when_a_second_one_joins(job: Submit, read: str) -> None:
    """It has nobody to compare with before. Where both decide alike, it is the same run, and goes on."""
    slow = DECIDES.replace("64", "2048").replace("        READ", "        time.sleep(0.03)\n        READ")
    source = slow.replace("READ", LATER[read]).replace("steps(8)", "steps(120)")
    run = job(f"import time\n{source}", nodes=1, elastic="1:2")
    run.until_step(4)

    def said(text: str) -> bool:
        texts = [event.data["text"] for event in run.of_kind("warning.raised")]
        return any("train.cache (line" in told and text in told for told in texts)

    assert said("A member that joins later, or begins again after a fault, has only") is ("decides" in read)
    run.scale(2)
    run.until_world(2)
    run.until_ended(60)
    assert max(event.data["world_size"] for event in run.of_kind("step.committed")) == 2, run.story()
    assert said("members hold different values of") is ("decides" in read), run.story()
    if read in READS:
        assert run.view["state"] == "succeeded", run.story()
    else:
        assert run.view["state"] == "failed", run.story()
        assert "other settings of the optimizer: weight_decay is 0.5 on rank" in run.view["reason"], run.story()


OF_STEP = """
import torch, jupyter_hyperpod as hp
class Control:
    def __init__(self):
        self.scale = self.offset = 1.0
control = Control()
def loss_function(batch):
    return (model(batch) * control.scale + control.offset).mean()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with hp.Session(model, optimizer, [torch.randn(4) for _ in range(8)], global_batch=4, micro_batch=2) as session:
    for step in session.steps(4):
        step.run(loss_function)
        late = session._loop._parts.comparison.late
        if step.number == 1:
            late.begin(late.look())
        if step.number == 2:
            control.scale, shown = 0.5, {"changed": {}, "places": {}, "inside": []}
            print(late.differing(late.look(), shown), control.scale)
            print(late.lacking(late.look(), shown), control.scale)
"""


@pytest.mark.quick
def test_only_a_newcomer_puts_a_value_back(tmp_path: Path) -> None:
    """What it alone has changed comes from code of its cell that follows earlier steps; a trained member's is right."""
    (tmp_path / "cell.py").write_text(OF_STEP)
    done = subprocess.run([sys.executable, "cell.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[-3:-1] == ["[] 0.5", "[] 1.0"], done.stdout + done.stderr


def test_a_path_with_a_key_that_cannot_be_read_back_is_none() -> None:
    path = (("global", ("__main__", "sums")), ("item", "loss"))
    assert path_of(repr(path)) == path
    assert path_of(repr((*path, ("item", torch.float32)))) == path_of(repr((*path, ("item", float("inf"))))) == ()


def test_a_walk_that_waits_for_a_core_is_not_a_slow_one() -> None:
    """Else what a cell does between two steps would not be looked at on a busy machine, and not be carried."""

    def walk(between: bool = False) -> Walk:
        threading.Event().wait(2 * LONGEST_S)
        return Walk()

    heap, carried = SimpleNamespace(walk=walk, own=frozenset()), SimpleNamespace(origins=None)
    comparison = Comparison(cast(Heap, heap), {}, cast(Carried, carried), True, print)
    comparison.look()
    assert not comparison._slow
