"""What each member does for itself when it begins to train, and which of them is rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import TrainingError
from tests.runtime.conftest import TRAIN, Submit

LOOP = "    for step in session.steps(24):"
OPENING = """
    log = None
    def begin():
        global log
        log = open(f"{os.environ['FOLDER']}/{os.getpid()}", "w")
        print("begins at", session.step, "counts", counter.x, file=log, flush=True)
    counter = hp.State(x=7)
    session.register(counter=counter)
    session.on_start(begin)
"""


def source() -> str:
    after = "        session.log(loss=loss)\n        counter.x += 1\n        print(float(loss), file=log, flush=True)"
    return TRAIN.replace(LOOP, OPENING.rstrip() + "\n" + LOOP).replace("        session.log(loss=loss)", after)


@pytest.mark.timeout(120)
def test_each_member_begins_for_itself(job: Submit, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    env = {"FOLDER": str(folder), "PAUSE_S": "0.03"}
    calm = job(source(), nodes=1, env=env)
    calm.finish()
    for path in folder.iterdir():
        path.unlink()
    run = job(source(), nodes=3, env=env)
    run.until_step(6)
    first = next(member["node"] for member in run.view["members"] if member["rank"] == 0)
    run.kill(0)
    run.finish()
    run.same_as(calm)
    began = sorted(path.read_text().splitlines()[0] for path in folder.iterdir())
    assert began[:3] == ["begins at 0 counts 7"] * 3
    late = [line.split() for line in began[3:]]
    assert len(late) == 1 and int(late[0][2]) > 5 and int(late[0][4]) == 7 + int(late[0][2])
    (moved,) = (event.data for event in run.of_kind("decision.made") if event.data["policy"] == "ranks")
    assert moved["value"] != first and moved["reason"].endswith("is rank 0 now: session.is_main is true there")


COUNTING = TRAIN.replace(
    LOOP,
    "    counter = hp.State(x=0)\n    session.register(counter=counter)\n"
    "    def begin(): counter.x += 1\n    session.on_start(begin)\n" + LOOP,
)


@pytest.mark.timeout(120)
def test_a_start_that_changes_what_is_registered_is_refused(job: Submit) -> None:
    view = job(COUNTING, nodes=1).finish("failed")
    assert "the function begin that session.on_start() was given has changed" in view["error"]["message"]


def test_a_start_that_trains_or_comes_late_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.ones(2)] * 8

    def halve() -> None:
        with torch.no_grad():
            model.weight.mul_(0.5)

    with hp.Session(model, optimizer, data, global_batch=4, micro_batch=2) as session:
        session.on_start(halve)
        with pytest.raises(TrainingError, match=r"halve that session.on_start\(\) was given has changed the training"):
            next(session.steps(2))
        with pytest.raises(TrainingError, match="after the first step"):
            session.on_start(halve)


@pytest.mark.parametrize("early", [False, True], ids=["in_the_cell", "of_the_job"])
def test_a_variable_that_chooses_kernels_comes_too_late_in_a_cell(job: Submit, early: bool) -> None:
    """MKL reads it at its first multiplication, which a warm process has done before the cell begins."""
    env = {"PAUSE_S": "0"} | ({"MKL_CBWR": "COMPATIBLE"} if early else {})
    source = "import os\nos.environ['MKL_CBWR'] = 'COMPATIBLE'\n" + TRAIN
    run = job(source, nodes=2, env=env)
    run.finish()
    said = [event.data["text"] for event in run.of_kind("warning.raised")]
    assert any("sets MKL_CBWR" in text and "--env MKL_CBWR=…" in text for text in said) is not early, said
