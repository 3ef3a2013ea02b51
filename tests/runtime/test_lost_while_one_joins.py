"""A member is lost in the first step of another one that joins: nothing goes on that nobody has compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.conftest import Submit
from tests.runtime.test_late_changes import RING, change

CELL = """
import os, time, torch, jupyter_hyperpod as hp
from pathlib import Path
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
class Control:
    def __init__(self):
        self.last, self.scale = 0, 1.0
    def cool(self, step):
        if step >= 6 and step != self.last:
            self.last, self.scale = step, self.scale * 0.97
        return self.scale
control = Control()
def loss_function(batch):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * control.cool(session.step)

with hp.Session(model, optimizer, data, global_batch=16, micro_batch=2) as session:
    HOOKS
    for epoch in session.epochs(10):
        for step in session.steps(10):
            BEFORE
            step.run(loss_function)
"""
HOOKS = """
    execution, place = session._execution, Path({place!r})
    execute, reduce, prove = execution._execute, execution._reduce, execution._prove
    def wait_for(*names):
        while not all((place / name).exists() for name in names):
            time.sleep(0.02)
    def killed(name, *others):
        wait_for(*others)
        (place / name).touch()
        os.kill(os.getpid(), 9)
    def one_of_all(rank, members, *others):  # the member that is lost first, where all are busy with a step
        if session.world_size == members and not (place / "killed").exists():
            (place / f"rank{{session.rank}}").touch()
            if session.rank == rank:
                killed("killed", *others)
"""


def cell(place: Path, hooks: str = "", before: str = "pass") -> str:
    hooks = (HOOKS.format(place=str(place)) + hooks).lstrip()
    return CELL.replace("HOOKS", hooks).replace("BEFORE", before)


@pytest.mark.timeout(240)
def test_what_a_trained_member_has_changed_is_kept_where_one_is_compared_again(job: Submit, tmp_path: Path) -> None:
    """The loss function sets a value once per step; the member that joins has computed a micro-batch already."""
    hooks = """
    def watched():
        one_of_all(1, 4, "rank0", "rank2", "rank3")
        return reduce()
    execution._reduce = watched
"""
    stop = f"if Path({str(tmp_path / 'killed')!r}).exists(): break"
    run = job(cell(tmp_path, hooks, stop), nodes=3, elastic="1:4", env={"PAUSE_S": "0.02"})
    run.until_step(22)
    run.scale(4)
    view = run.until_ended(90)
    assert (tmp_path / "killed").exists(), run.story()
    last = max(event.data["step"] for event in run.of_kind("step.committed"))
    alone = job(cell(tmp_path, before=f"if step.number == {last + 1}: break"), nodes=1)
    alone.finish()
    assert view["state"] == "failed" or view["digest"] == alone.view["digest"], run.story()


@pytest.mark.timeout(240)
def test_a_member_that_joins_stops_where_all_that_have_trained_are_lost_before_it_is_compared(
    job: Submit, tmp_path: Path
) -> None:
    hooks = """
    def computes(loss, leaf, aside=None):
        if session.step == 25 and session.rank == 0 and execution._plan.joined and not (place / "last").exists():
            killed("last", "newcomer")
        execute(loss, leaf, aside)
        if session.step == 25:
            one_of_all(1, 2, "rank0")
    def compared():
        if session.step == 25 and session.rank != 0 and (place / "killed").exists():
            (place / "newcomer").touch()
        prove()
    execution._execute, execution._prove = computes, compared
"""
    plain = change(RING).replace("micro_batch=4", "micro_batch=2").replace("epochs(50)", "epochs(10)")
    alone = job(plain, nodes=1)
    alone.finish()
    own = "from pathlib import Path\n" + HOOKS.format(place=str(tmp_path)) + hooks
    source = plain.replace("    for epoch in", f"    {own.lstrip()}    for epoch in")
    run = job(source, nodes=2, spares=1, elastic="1:3", env={"PAUSE_S": "0.02"})
    view = run.until_ended(90)
    assert (tmp_path / "killed").exists(), run.story()
    assert view["state"] == "failed" or view["digest"] == alone.view["digest"], run.story()
