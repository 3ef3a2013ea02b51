"""One member ends the training of all: after the same step, with the same bits, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import TRAIN, Run, Submit

# rank 1 alone sees the file that says when
LONE = TRAIN.replace("for step in session.steps(24):", "for step in session.steps(1_000_000):").replace(
    "        session.log(loss=loss)",
    "        session.log(loss=loss)\n"
    "        if session.rank == min(1, session.world_size - 1) and session.step >= 9: session.stop('the time is up')\n"
    "    print('behind', session.step, session.stopped)",
)
EPOCHS = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [torch.randn(8) for _ in range(32)]
tails = []
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for epoch in session.epochs(1000):
        for step in session.steps(4):
            step.run(lambda batch: model(batch).pow(2).mean())
            time.sleep(float(os.environ.get("PAUSE_S", "0")))
            if session.is_main and session.step == 10:
                session.stop("enough")
                session.stop("said twice")
        tails.append(session.step)
print("tails", tails)
"""


def steps(run: Run) -> int:
    return max(event.data["step"] for event in run.of_kind("step.committed"))


@pytest.mark.timeout(120)
def test_one_member_ends_the_training_of_all(job: Submit) -> None:
    run = job(LONE, nodes=3)
    run.finish()
    assert steps(run) == 10, "the step after that in which it was asked for"
    assert set(run.text().values()) == {"behind 10 True\n"}
    (asked,) = (e.data for e in run.of_kind("decision.made") if e.data["policy"] == "session")
    assert asked == {
        "policy": "session",
        "value": "stop",
        "reason": "rank 1 asked after step 9 that training stops: the time is up",
    }
    alone = job(TRAIN.replace("session.steps(24)", "session.steps(10)"), nodes=1)
    alone.finish()
    assert run.view["digest"] == alone.view["digest"]


@pytest.mark.timeout(180)
def test_members_that_join_later_stop_too(job: Submit) -> None:
    run = job(LONE, nodes=3, env={"PAUSE_S": "0.05"})
    run.until_step(9)
    run.kill(0)
    run.finish()
    assert run.view["step"] in (10, 11), "a request may be lost with its member, and is made again"
    assert {text.splitlines()[-1] for text in run.text().values()} == {f"behind {run.view['step']} True"}


@pytest.mark.timeout(120)
def test_the_rest_of_the_epoch_is_run_and_no_other(job: Submit) -> None:
    run = job(EPOCHS, nodes=2)
    run.finish()
    assert set(run.text().values()) == {"tails [4, 8, 11]\n"}
    assert sum(e.data["policy"] == "session" for e in run.of_kind("decision.made")) == 1


@pytest.mark.timeout(120)
def test_a_lone_break_says_what_to_write(job: Submit) -> None:
    source = TRAIN.replace("        session.log(loss=loss)", "        if session.rank == 1 and step.number == 5: break")
    run = job(source, nodes=2)
    view = run.finish("failed")
    assert "left its session after step 5" in view["reason"]
    assert "session.stop(reason) on one rank ends the loops of all" in view["reason"]


@pytest.mark.timeout(120)
def test_a_loop_that_never_looks_is_told(job: Submit) -> None:
    source = EPOCHS.replace("for epoch in session.epochs(1000):", "while True:").replace(
        "        tails.append(session.step)", "        if len(tails) > 50: break\n        tails.append(session.step)"
    )
    run = job(source, nodes=2)
    run.finish()
    assert any("while not session.stopped" in warning["text"] for warning in run.view["warnings"])
