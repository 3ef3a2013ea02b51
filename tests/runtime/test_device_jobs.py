"""Jobs that exchange gradients by gloo process groups: the bits of one undisturbed node on the host's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.conftest import TRAIN, Run, Submit

SHOWN = 'print("by", type(session._gradients.collectives).__name__)\n    for step in session.steps(24):'
# one member strikes itself where the others are in a collective of step 6, or wait to enter the next one
STRIKE = """
import os, signal
from jupyter_hyperpod.runtime.comm.process_group import ProcessGroup
gather = ProcessGroup.gather_slices
def struck(self, whole):
    if session.step == 5 and session.rank == 1 and session.world_size == 3 and not os.path.exists({flag!r}):
        open({flag!r}, "x").close()
        os.kill(os.getpid(), signal.{signal})
    gather(self, whole)
ProcessGroup.gather_slices = struck
"""


def shown(source: str = TRAIN) -> str:
    return source.replace("for step in session.steps(24):", SHOWN)


@pytest.mark.parametrize(
    "signal, cause", [("SIGKILL", "process killed"), ("SIGSTOP", "process stopped")], ids=["killed", "stopped"]
)
def test_a_member_that_strikes_in_mid_collective_blocks_nobody(
    job: Submit, reference: Run, tmp_path: Path, signal: str, cause: str
) -> None:
    strike = STRIKE.format(flag=str(tmp_path / "struck"), signal=signal)
    run = job(strike + shown(), collectives="gloo")
    view = run.finish()
    assert (tmp_path / "struck").exists()
    assert [incident["cause"] for incident in view["incidents"]] == [cause]
    assert any("by DeviceCollectives" in event.data["text"] for event in run.of_kind("output.written"))
    run.same_as(reference)


def test_members_that_are_killed_join_and_leave_change_no_bit(job: Submit, reference: Run) -> None:
    run = job(collectives="gloo", env={"PAUSE_S": "0.03"})
    run.until_step(4)
    run.kill(1)
    run.until_event("incident.stage", stage="rejoined")
    run.until_world(3)
    run.scale(2)
    run.until_world(2)
    run.scale(3)
    run.until_world(3)
    run.finish()
    run.same_as(reference)
