"""A loss function sets what the program reads, and a spare comes in an interrupted step: same result, or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.conftest import Run, Submit
from tests.runtime.test_late_changes import OF_STEP
from tests.runtime.test_lost_while_one_joins import HOOKS

CELL = """
import os, time, torch, jupyter_hyperpod as hp
from pathlib import Path
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05)] * RUNS
class Stage:
    def __init__(self, weight):
        self.weight = weight
class Control:
    def __init__(self):
        self.scale, self.cooled, self.last, self.stage = 1.0, 1.0, 0, stages[0]
stages = [Stage(1.0), Stage(0.5), Stage(1.5)]
table, rate, tensor, calls = {"scale": 1.0}, 1.0, torch.ones(1), 0
control, seen = Control(), []
def loss_function(batch):
    global rate, tensor
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    step = session.step
    SETS
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return loss * control.scale * control.cooled * control.stage.weight * table["scale"] * rate * tensor.sum()
def all_of_it():
    return control.scale, control.cooled, control.stage.weight, table["scale"], rate, tensor.item()

with hp.Session(model, optimizers, data, global_batch=16, micro_batch=2) as session:
    HOOKS
    for epoch in session.epochs(EPOCHS):
        for step in session.steps(10):
            BEFORE
            for run in range(RUNS):
                step.run(loss_function)
                seen.append(all_of_it())
print(sum(hash(one) for one in seen), seen[-1], len(seen))
"""
LATE = """if step >= 12:
        control.scale, table["scale"], rate = 0.99 ** step, 0.9 ** (step // 10), 0.995 ** step
        tensor = torch.full((1,), 0.9 ** (step // 20))
        control.stage = stages[step % 3]
        if control.last != step:
            control.last, control.cooled = step, control.cooled * 0.99"""
FIRST = """control.scale, table["scale"], rate = 0.99 ** step, 0.9 ** (step // 10), 0.995 ** step"""
COUNTS = "if step >= 12: control.scale *= 0.999"
OF_RANK = "if step >= 12: control.scale = 0.99 ** step * (1 + session.rank)"
# from these updates on, when all members are there and have computed something of the step's last run
LOST = """
    def lost(loss, leaf, aside=None):
        execute(loss, leaf, aside)
        update = session._state.applied
        if aside is not None or session.world_size != MEMBERS or update % RUNS != RUNS - 1:
            return
        for first, ranks in KILLS:
            if update >= first and not (place / f"killed{first}").exists():
                (place / f"rank{session.rank}of{update}").touch()
                if session.rank in ranks:
                    killed(f"killed{first}", *(f"rank{other}of{update}" for other in range(MEMBERS)))
    execution._execute = lost
"""


def cell(sets: str, before: str = "pass", hooks: str = "", runs: int = 1) -> str:
    changed = {"SETS": sets, "BEFORE": before, "RUNS": str(runs), "EPOCHS": str(8 if runs == 1 else 5)}
    source = CELL.replace("HOOKS", hooks.lstrip() or "pass")
    for name, text in changed.items():
        source = source.replace(name, text)
    return source


def losing(place: Path, members: int, **kills: tuple[int, ...]) -> str:
    """Lose these ranks at an update from ``from_30``, and so on."""
    found = tuple((int(name.removeprefix("from_")), ranks) for name, ranks in kills.items())
    hooks = HOOKS.format(place=str(place)) + LOST
    return hooks.replace("MEMBERS", str(members)).replace("KILLS", repr(found))


def told_to_come_again(run: Run) -> list[str]:
    reasons = [event.data["reason"] for event in run.of_kind("decision.made")]
    return [reason for reason in reasons if "begin again, and join between two steps" in reason]


def same(run: Run, alone: Run) -> None:
    """The losses, the final state and what all members have printed."""
    assert (run.losses(), run.view["digest"]) == (alone.losses(), alone.view["digest"]), run.story()
    assert set(run.text().values()) == set(alone.text().values()), (run.text(), run.story())


@pytest.mark.timeout(240)
def test_members_that_join_at_once_and_later_have_what_the_loss_function_sets(job: Submit, tmp_path: Path) -> None:
    """It sets that late. The loop reads it before and after the step."""
    before = "seen.append(all_of_it())"
    alone = job(cell(LATE, before), nodes=1)
    alone.finish()
    hooks = losing(tmp_path, 4, from_25=(2, 3), from_45=(1,))
    run = job(cell(LATE, before, hooks), nodes=4, spares=2, env={"PAUSE_S": "0.02"})
    run.finish()
    assert (tmp_path / "killed25").exists() and told_to_come_again(run), run.story()
    assert (tmp_path / "killed45").exists() and run.view["world_size"] == 4, run.story()
    same(run, alone)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("sets", "runs"),
    [(FIRST, 1), (FIRST, 2), (LATE, 2)],
    ids=["first", "first of two", "late"],
)
def test_what_follows_an_interrupted_step_reads_what_the_loss_function_has_set(
    job: Submit, tmp_path: Path, sets: str, runs: int
) -> None:
    """Where a step has several runs, so does what follows the first of them."""
    alone = job(cell(sets, runs=runs), nodes=1)
    alone.finish()
    run = job(cell(sets, "pass", losing(tmp_path, 3, from_45=(2,)), runs), nodes=3, spares=1, env={"PAUSE_S": "0.02"})
    run.finish()
    assert (tmp_path / "killed45").exists() and told_to_come_again(run), run.story()
    same(run, alone)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("sets", [COUNTS, OF_RANK], ids=["calls", "rank"])
def test_what_depends_on_calls_or_ranks_is_refused(job: Submit, tmp_path: Path, sets: str) -> None:
    run = job(cell(sets, "pass", losing(tmp_path, 3, from_25=(2,))), nodes=3, spares=1, env={"PAUSE_S": "0.02"})
    reason = run.finish("failed")["reason"]
    said = ("another gradient", "a wrong gradient", "4 different gradients", "control.scale")
    assert any(words in reason for words in said), run.story()


LOOKS = """def loss_function(batch):
    if session.step == 2:
        control.scale = 0.5
        session._loop._carry_more()
        print("inside", late.may_miss(False))"""


@pytest.mark.quick
def test_what_is_copied_first_in_a_step_is_known_until_its_end(tmp_path: Path) -> None:
    """Other copies of a newcomer are of the place before the step; this one may be of the step itself."""
    source = OF_STEP.replace("def loss_function(batch):", LOOKS).partition("        if step.number == 2:")[0]
    (tmp_path / "cell.py").write_text(f"{source}print('after it', late.may_miss(False))")
    done = subprocess.run([sys.executable, "cell.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:-1] == ["inside ['control.scale']"] * 2 + ["after it []"], done.stdout + done.stderr


@pytest.mark.quick
def test_a_newcomer_keeps_what_steps_fill_on_the_member_that_it_is_compared_with(tmp_path: Path) -> None:
    """That member does not show it as changed: so the newcomer is not the only one that has changed it."""
    path = repr((("global", ("__main__", "control")), ("attr", "scale")))
    source = OF_STEP.replace('"inside": []', f'"inside": [{path!r}]')
    (tmp_path / "cell.py").write_text(source)
    done = subprocess.run([sys.executable, "cell.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[-3:-1] == ["[] 0.5", "[] 0.5"], done.stdout + done.stderr
