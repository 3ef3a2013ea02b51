"""Programs that keep something outside the session: no node is fenced for that, and the job says what to write."""

from __future__ import annotations

import pytest

from jupyter_hyperpod.storage.values import pulled
from tests.runtime.conftest import TRAIN, Run, Submit

LOOP = "        session.log(loss=loss)\n"
PROGRAM = "program not reproducible"
LOOP_HEAD = "for step in session.steps(24)"


def changed(*replacements: tuple[str, str]) -> str:
    """`TRAIN` with other lines."""
    source = TRAIN
    for old, new in replacements:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def blamed(run: Run) -> str:
    """The sentence that the job ends with; the same stands in the journal, in the incident and at the card."""
    reason = str(run.finish("failed", 90)["reason"])
    told = [i for i in run.view["incidents"] if i["cause"] == PROGRAM]
    assert len(told) == 1, run.story()
    assert told[0]["stages"][-1]["text"] == reason, run.story()
    assert "the likely cause is the program, not a node" in reason.replace("The", "the")
    assert reason.endswith("no node is fenced and nothing starts again")
    corrupt = [e for e in run.of_kind("member.lost") if e.data["cause"] == "silent data corruption"]
    assert not corrupt, run.story()
    again = [e for e in run.of_kind("decision.made") if "from its seed" in e.data["reason"]]
    assert not again, run.story()
    return reason


def refused(run: Run) -> str:
    """The sentence with which a job ends before its first step."""
    reason = str(run.finish("failed")["reason"])
    assert run.view["step"] == 0, run.story()
    assert not run.of_kind("member.lost"), run.story()
    return reason


BEHIND = ("def loss_fn(batch):\n", "def loss_fn(batch):\n    model[1].weight.data.mul_(0.999)\n")
COUNTER = ("def loss_fn(batch):\n", "turns = [0]\n\ndef loss_fn(batch):\n    turns[0] += 1\n")
BY_TURN = ("targets)\n", "targets) * (1 + 0.01 * turns[0])\n")
OWN_DRAW = ("def loss_fn(batch):\n", 'draw = int.from_bytes(os.urandom(4), "big") / 2**32\n\ndef loss_fn(batch):\n')
BY_DRAW = ("targets)\n", "targets) * draw\n")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param([COUNTER, BY_TURN], "turns", id="a counter in the loss function"),
        pytest.param([BEHIND], "because of the model's 1.weight", id="a write to the model that torch does not count"),
        pytest.param([OWN_DRAW, BY_DRAW], "draw", id="a draw that each process makes"),
        pytest.param(
            [
                (f"    {LOOP_HEAD}:\n", f"    batches = iter(range(99))\n    {LOOP_HEAD}:\n"),
                (LOOP, f"{LOOP}        next(batches)\n"),
            ],
            "batches is a range_iterator, whose position",
            id="an iterator beside the loop",
        ),
        pytest.param(
            [(f"    {LOOP_HEAD}:\n", "    for one, step in zip(data, session.steps(24)):\n        print(one)\n")],
            "one depends on how often",
            id="data beside the steps",
        ),
    ],
)
def test_what_nobody_could_repeat_is_refused_before_the_first_step(
    job: Submit, changes: list[tuple[str, str]], named: str
) -> None:
    assert named in refused(job(changed(*changes)))


def test_weights_that_are_changed_before_a_step(job: Submit) -> None:
    source = changed((f"    {LOOP_HEAD}:\n", f"    {LOOP_HEAD}:\n        model[0].weight.data.mul_(0.99)\n"))
    assert "the cell changed the model before step.run(), in step 1" in refused(job(source))


def test_a_value_that_only_rank_0_keeps(job: Submit) -> None:
    source = changed(
        ("def loss_fn", "best = []\n\ndef loss_fn"),
        (LOOP, f"{LOOP}        if session.rank == 0:\n            best.append(loss)\n"),
    )
    reason = str(job(source + "print(best)\n").finish("failed")["reason"])
    assert "members carry different values after step 1: best (line" in reason


def test_a_value_that_only_the_notebook_reads_comes_from_a_later_rank_0(job: Submit) -> None:
    """Both first members are lost, so the value comes from a member that joined after it was set."""
    source = changed((LOOP, f"{LOOP}        if step.number == 3: third = loss\n"))
    undisturbed = job(source, nodes=1, pull=("third",))
    undisturbed.finish()
    run = job(source, nodes=2, pull=("third",), pause_s=0.1)
    run.until_step(5)
    for losses in (1, 2):
        run.kill(0)
        run.until_made_good(losses, 2)
    run.full_speed()
    run.finish()
    run.same_as(undisturbed)
    values, expected = (pulled(one.store.job(one.job_id).path) for one in (run, undisturbed))
    assert values == expected and list(values[0]) == ["third"], run.story()


def frozen_from(condition: str) -> str:
    """`TRAIN` whose loop freezes a layer where `condition` holds."""
    freeze = (
        f"    for turn, step in enumerate(session.steps(24)):\n        model[0].requires_grad_(not ({condition}))\n"
    )
    return changed(("    for step in session.steps(24):\n", freeze)).replace("nn.LayerNorm(16), ", "")


def test_layers_that_are_frozen_by_the_cells_own_count(job: Submit) -> None:
    assert "turn depends on how often this process has gone round its loop" in refused(job(frozen_from("turn >= 12")))


def test_layers_that_are_frozen_by_the_steps_number(job: Submit) -> None:
    source = frozen_from("step.number >= 8").replace("for turn, step in enumerate(session.steps(24))", LOOP_HEAD)
    undisturbed = job(source, nodes=2)
    undisturbed.finish()
    run = job(source)
    run.until_step(12)
    run.kill(1)
    run.finish()
    run.same_as(undisturbed)


LISTED = """
import random
import torch
import jupyter_hyperpod as hp


class Files(torch.utils.data.Dataset):
    def __init__(self):
        names = [f"class {number}" for number in range(8)]
        random.SystemRandom().shuffle(names)
        self.classes = {name: place for place, name in enumerate(names)}

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(256) * index, self.classes[f"class {index % 8}"]


model = torch.nn.Linear(256, 16, bias=False)
torch.nn.init.zeros_(model.weight)
data = Files()
with hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data, global_batch=8, micro_batch=4) as session:
    for step in session.steps(3):
        step.run(lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
"""


def test_classes_that_each_member_lists_in_another_order_are_refused(job: Submit) -> None:
    """From weights of 0 the two gradients have the same numbers, in other places of the same 8 KiB."""
    assert "because of Files.classes" in refused(job(LISTED, nodes=2, spares=0))


LATE = (
    "def loss_fn(batch):\n",
    "mean = [0.0]\n\ndef loss_fn(batch):\n    if step.number > 5: mean[0] = 0.9 * mean[0] + 0.1 * float(batch[1])\n",
)
BY_MEAN = ("targets)\n", "targets) * (1 + mean[0])\n")
SPARSE = (
    "def loss_fn(batch):\n",
    "import random\nown = random.Random(3)\n\ndef loss_fn(batch):\n"
    "    noise = own.random() if step.number > 5 else 0.0\n",
)
BY_NOISE = ("targets)\n", "targets) * (1 + noise)\n")


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("change", [(SPARSE, BY_NOISE), (LATE, BY_MEAN)], ids=["generator", "mean"])
def test_what_begins_in_a_later_step_is_refused(job: Submit, change: tuple[tuple[str, str], ...], nodes: int) -> None:
    """The first steps are the same on every member; from step 6 on each has its own numbers."""
    lines = tuple((old, new.replace("float(batch[1])", "float(batch[1].mean())")) for old, new in change)
    run = job(changed(*lines), nodes=nodes, spares=0)
    reason = str(run.finish("failed")["reason"])
    assert "step 6" in reason and "would be another run" in reason, reason
    assert not run.of_kind("member.lost"), run.story()


CAUGHT = (
    "        loss = step.run(loss_fn)\n",
    "        try:\n            loss = step.run(raising)\n        except ValueError:\n"
    "            loss = step.run(loss_fn)\n",
)
RAISING = (
    "settings = dict(",
    "def raising(batch):\n    if step.number == 3: raise ValueError('large')\n    return loss_fn(batch)\n\n"
    "settings = dict(",
)


def test_an_error_of_the_loss_function_that_the_cell_catches_is_refused(job: Submit) -> None:
    reason = str(job(changed(CAUGHT, RAISING), nodes=2).finish("failed")["reason"])
    assert "a micro-batch of step 3 raised ValueError, and the cell has caught it" in reason, reason


FLAG = (
    "def loss_fn(batch):\n",
    "flagged = []\n\ndef loss_fn(batch):\n    if by_member(): flagged.append(step.number)\n",
)
BY_MEMBER = (
    "settings = dict(",
    "def by_member():  # as a threshold would be reached by one member's samples\n"
    "    return step.number == 9 and session.rank == 1\n\nsettings = dict(",
)
RATE = (LOOP, f"{LOOP}        if flagged: optimizer.param_groups[0]['lr'] *= 0.5; flagged.clear()\n")
WEIGHT = (LOOP, f"{LOOP}        if flagged: torch.no_grad()(model[1].weight.mul_)(0.5); flagged.clear()\n")


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize(
    ("reacts", "found"),
    [(RATE, "other settings of the optimizer: lr is "), (WEIGHT, "the cell has written to them a different number")],
    ids=["learning rate", "weight"],
)
def test_a_flag_that_one_members_samples_set_accuses_no_device(
    job: Submit, reacts: tuple[str, str], found: str, nodes: int
) -> None:
    run = job(changed(FLAG, BY_MEMBER, reacts), nodes=nodes, spares=0)
    reason = str(run.finish("failed")["reason"])
    assert ": step 10: members have other" in reason and found in reason, reason
    assert not run.of_kind("member.lost"), run.story()


@pytest.mark.parametrize(
    ("size", "warned"),
    [
        ('lr=1e-2 * int(os.environ["WORLD_SIZE"]))', "the number of members (WORLD_SIZE), so"),
        ("lr=1e-2)", ""),
    ],
    ids=["scaled", "not scaled"],
)
def test_a_rate_that_is_scaled_by_the_members_is_said_once(job: Submit, size: str, warned: str) -> None:
    run = job(changed(("lr=1e-2)", size), (LOOP, f"{LOOP}        print(session.world_size)\n")), nodes=2, spares=0)
    run.finish()
    told = [text for event in run.of_kind("warning.raised") if "number of members" in (text := event.data["text"])]
    assert len(told) == bool(warned) and all(warned in text for text in told), run.story()
