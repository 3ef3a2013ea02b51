"""A cell with several sessions: members that are lost in a later one are replaced, and the bits stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from jupyter_hyperpod.runtime.checkpoint.ended import SessionEnd, read
from jupyter_hyperpod.runtime.comm import state_codec
from jupyter_hyperpod.runtime.program.frames import bind_target
from tests.runtime.conftest import TRAIN, Run, Submit

FOLDS = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
scores, total, rates = [], 0.0, {"now": 0.05}

def loss_of(model):
    def loss(batch):
        time.sleep(pause_s)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return loss

for fold in range(3):
    pause_s = float(os.environ.get("PAUSE_S", "0")) if fold == SLOW else 0.0
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rates["now"])
    train, held_out = [d for i, d in enumerate(data) if i % 3 != fold], data[fold::3]
    best = float("inf")
    with hp.Session(model, optimizer, train, global_batch=16, micro_batch=4) as session:
        for epoch in session.epochs(40):
            for step in session.steps(2):
                total += step.run(loss_of(model))
            score = session.evaluate(loss_of(model), held_out, name=f"fold{fold}")
            best = min(best, score)
            if epoch == 20 + fold:
                break
        last = session.evaluate(loss_of(model), held_out, name="last")
    scores.append((best, last, session.loss))
    rates["now"] *= 0.5
print(scores, total, rates)
"""
STAGES = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
model = torch.nn.Sequential(body, head)

def loss(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

with hp.Session(model, torch.optim.AdamW(model.parameters(), lr=0.05), data, global_batch=16, micro_batch=4) as first:
    while not first.stopped:
        for step in first.steps(5):
            step.run(loss)
            if step.number == 18:
                first.stop("it is enough")
for parameter in body.parameters():
    parameter.requires_grad_(False)
with torch.no_grad():
    head.weight.mul_(0.5)
with hp.Session(model, torch.optim.SGD(head.parameters(), lr=0.05), data, global_batch=16, micro_batch=4) as second:
    for step in second.steps(60):
        step.run(loss)
print(first.loss, second.loss, first.step)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("session", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lost", [[0], [1], [0, 1]], ids=["first", "second", "all"])
def test_folds_replace_lost_members(
    job: Submit, undisturbed: Callable[[str], Run], session: int, lost: list[int]
) -> None:
    alone = undisturbed(FOLDS.replace("SLOW", "0"))
    run = job(FOLDS.replace("SLOW", str(session - 1)), nodes=2, pause_s=0.03)  # it pauses in this session alone
    run.until_event("session.opened", session)
    begun = len(run.of_kind("step.committed"))
    run.until(lambda: len(run.of_kind("step.committed")) >= begun + 8, 60.0)
    for rank in lost:
        run.kill(rank)
    run.until_made_good(len(lost), size=2)
    run.full_speed()
    run.finish()
    assert run.view["digest"] == alone.view["digest"], run.story()
    assert run.text()[0].splitlines()[-1] == alone.text()[0].splitlines()[-1]
    assert [one["step"] for one in run.view["sessions"]] == [42, 44] and run.view["step"] == 46
    assert run.view["loss"] == alone.view["loss"] and run.view["sessions"] == alone.view["sessions"]
    warned = [event.data["text"] for event in run.of_kind("warning.raised")]
    assert all("every member that held the training state is lost" in text for text in warned), run.story()
    assert len(warned) <= (len(lost) > 1), "only where no member is left that could give the state"


@pytest.mark.timeout(180)
def test_a_second_stage_grows_and_replaces_lost_members(job: Submit) -> None:
    alone = job(STAGES, nodes=1)
    alone.finish()
    run = job(STAGES, nodes=2, elastic="1:3", pause_s=0.02)
    run.until_event("session.opened", 2)
    run.until(lambda: sum(e.data["session"] == 2 for e in run.of_kind("step.committed")) >= 5, 60.0)
    run.scale(3)
    run.until_world(3)
    run.kill(0)
    run.until_made_good(losses=1, size=3)
    run.full_speed()
    run.finish()
    assert len(run.of_kind("member.lost")) == 1, run.story()
    assert run.view["digest"] == alone.view["digest"] and set(run.text().values()) == set(alone.text().values())


def test_the_end_of_a_session_is_read_back_whole(tmp_path: Path) -> None:
    state = {"model": {"weight": torch.randn(3, 5), "half": torch.randn(4).bfloat16()}, "step": 7, "empty": []}
    skeleton, tensors = state_codec.pack(state)
    end = SessionEnd(2, 7, "digest", True, {"1 0 0 0": {"": 0.1}}, skeleton=skeleton, tensors=list(tensors))
    path = tmp_path / "ended" / "2.state"
    assert read(path, 2) is None
    end.write(path)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    found = read(path, 2)
    assert found is not None and (found.step, found.digest, found.stopped, found.results) == (
        7,
        "digest",
        True,
        end.results,
    )
    assert state_codec.digest(state_codec.unpack(found.skeleton, found.tensors)) == state_codec.digest(state)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="shorter than expected"):
        read(path, 2)


LARGE = "import jupyter_hyperpod.runtime.checkpoint.ended as ended\nended.KEPT_BYTES = 100\n" + STAGES
CHANGED = STAGES.replace(
    "for parameter in body",
    "    with torch.no_grad():\n        head.bias.mul_(0.5)\nfor parameter in body",
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("cell", "why"), [(LARGE, "more than 100 B"), (CHANGED, "was changed by the cell between its last step")]
)
def test_where_the_end_of_a_session_is_not_kept_that_is_said(job: Submit, cell: str, why: str) -> None:
    run = job(cell, nodes=2, env={"PAUSE_S": "0.02"})
    run.until(lambda: sum(e.data["session"] == 2 for e in run.of_kind("step.committed")) >= 5, 60.0)
    run.kill(1)
    run.finish()
    texts = [event.data["text"] for event in run.of_kind("warning.raised")]
    said = [text for text in texts if "members that are lost from now on are not replaced" in text]
    assert len(said) == 1 and why in said[0], texts
    assert any("rank 1 on" in text and "is not replaced" in text for text in texts), texts


HEAD = """
import math, os, time, torch, jupyter_hyperpod as hp
from torch import nn
torch.manual_seed(0)
x = torch.randn(80, 4)
y = x.sum(1, keepdim=True)
data = torch.utils.data.TensorDataset(x, y)
pause_s = float(os.environ.get("PAUSE_S", "0"))
class Stop:
    def __init__(self, patience=1):
        self.best, self.bad, self.patience = math.inf, 0, patience
    def __call__(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience
def loss_of(model):
    def loss(batch):
        time.sleep(pause_s)
        return nn.functional.mse_loss(model(batch[0]), batch[1])
    return loss
"""
MORE_CELLS = {
    "a_stopper_that_counts": """
def train(seed, epochs, lr):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    history, stop = [], Stop()
    with hp.Session(model, opt, data, global_batch=16, micro_batch=4, seed=seed) as s:
        for epoch in s.epochs(epochs):
            total = 0.0
            for step in s.steps(5):
                total += step.run(loss_of(model))
            history.append(total)
            if stop(total):
                break
    return history
first = train(0, 10, 1.0)
second = train(1, 12, 0.01)
print("first", first, second)
""",
    "early_stopping_by_an_evaluation": """
results = []
def fold(number):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=(0.9, 0.02, 0.03)[number])
    stopper = Stop(2)
    with hp.Session(model, opt, data, global_batch=16, micro_batch=4, seed=number) as s:
        for epoch in s.epochs(12):
            for step in s.steps(5):
                step.run(loss_of(model))
            score = s.evaluate(loss_of(model), data, micro_batch=16)
            if stopper(score):
                break
        if s.is_main:
            print("fold", number, "ended in epoch", epoch)
    return stopper.best, epoch
for number in range(3):
    results.append(fold(number))
print(results)
""",
    "folds_at_the_top_level": """
scores = []
for fold in range(3):
    order = [i for i in range(80) if i % 3 != fold]
    train, val = torch.utils.data.Subset(data, order), torch.utils.data.TensorDataset(x[:20 + fold], y[:20 + fold])
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with hp.Session(model, optimizer, train, global_batch=16, micro_batch=4, seed=fold) as s:
        for epoch in s.epochs(8):
            total = 0.0
            for step in s.steps(5):
                total += step.run(loss_of(model))
        scores.append(s.evaluate(loss_of(model), val))
    if fold and scores[-1] > total:
        print("worse than in training", total)
print(scores, total)
""",
    "a_step_that_is_read_behind_its_loop": """
out = []
model = nn.Linear(4, 1)
for part in range(2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4, seed=part) as s:
        for step in s.steps(15 if part == 0 else 60):
            loss = step.run(loss_of(model))
    out.append((step.number, loss))
print(out, step.number)
""",
    "three_in_a_row": """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
log = []
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as s:
    for step in s.steps(15):
        log.append(step.run(loss_of(model)))
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as s:
    for step in s.steps(60):
        log.append(step.run(loss_of(model)))
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as s:
    for step in s.steps(20):
        log.append(step.run(loss_of(model)))
print(log)
""",
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", MORE_CELLS)
def test_what_people_write_around_their_sessions(job: Submit, name: str) -> None:
    """Rank 0 is lost, then the one that has replaced it: in the end, no member has run the first session."""
    alone = job(HEAD + MORE_CELLS[name], nodes=1)
    alone.finish()
    run = job(HEAD + MORE_CELLS[name], nodes=2, pause_s=0.02)
    run.until_event("session.opened", 2)
    for losses in (1, 2):
        begun = len(run.of_kind("step.committed"))
        run.until(lambda begun=begun: len(run.of_kind("step.committed")) >= begun + 5, 30.0)  # type: ignore[misc]
        run.kill(0)
        run.until_made_good(losses, size=2)
    run.full_speed()
    run.finish()
    assert run.view["digest"] == alone.view["digest"], run.story()
    assert run.text()[0].splitlines()[-1] == alone.text()[0].splitlines()[-1]
    assert not run.of_kind("warning.raised"), run.story()


@pytest.mark.timeout(240)
def test_a_short_session_that_nobody_has_looked_at_is_never_quietly_different(job: Submit) -> None:
    """Its last epochs take a few milliseconds: a change there may not be carried, and is compared at the end."""
    cell = HEAD + MORE_CELLS["a_stopper_that_counts"].replace("s.epochs(epochs)", "s.epochs(epochs if lr < 1 else 4)")
    cell = cell.replace("time.sleep(pause_s)", "time.sleep(pause_s if started else 0.0)").replace(
        "data = torch.utils", "started = []\ndata = torch.utils"
    )
    cell = cell.replace("second = train", "started.append(1)\nsecond = train")
    alone = job(cell, nodes=1)
    alone.finish()
    run = job(cell, nodes=2, env={"PAUSE_S": "0.02"})
    run.until_event("session.opened", 2)
    begun = len(run.of_kind("step.committed"))
    run.until(lambda: len(run.of_kind("step.committed")) >= begun + 5, 60.0)
    run.kill(0)
    run.finish()
    assert run.view["digest"] == alone.view["digest"], run.story()
    assert {text.splitlines()[-1] for rank, text in run.text().items() if rank is not None} == {
        alone.text()[0].splitlines()[-1]
    }, run.story()
    warned = [e.data["text"] for e in run.of_kind("warning.raised")]
    assert all("has not come to the same end" in text or "lost 3 workers" in text for text in warned), warned


def test_only_the_variable_of_the_loop_over_steps_is_bound() -> None:
    session = SimpleNamespace(steps=filter(bind_target, [7]))  # calls it from here, and yields nothing
    for step in session.steps:
        raise AssertionError(step)
    assert step == 7
    session.steps = filter(bind_target, [8])
    for epoch in range(1):
        found = [2 * step for step in session.steps]
        assert (found, epoch) == ([], 0)
    assert step == 7


@pytest.mark.slow
def test_an_optimizer_of_a_session_before_is_the_same_on_a_member_that_came_then(job: Submit) -> None:
    """Its large tensors were written more or less often: a newcomer got them whole."""
    stages = TRAIN.replace("nn.Linear(8, 16), nn.LayerNorm(16)", "nn.Linear(8, 10_000), nn.LayerNorm(10_000)")
    stages = stages.replace("nn.Linear(16, 1)", "nn.Linear(10_000, 1)")
    later = stages[stages.index("settings = ") :].replace("scheduler=scheduler", "scheduler=None")
    stages += "\nsecond = torch.optim.SGD(model.parameters(), lr=1e-3)\n" + later.replace("optimizer", "second")
    run = job(stages, nodes=1, elastic="1:2", spares=0, pause_s=0.02)
    run.until_step(3)
    run.scale(2)
    run.until_world(2)
    run.full_speed()
    assert run.until_ended()["state"] == "succeeded", run.story()
