"""A disk that is full for one process of a job: no fact is lost, nobody is taken for hung, the job goes on with room.

A limit on the size of a process's files refuses its writes as a full disk does.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtime.conftest import STEPS, TRAIN, Run, Submit

Wait = Callable[..., Any]
FEW_FACTS = "from jupyter_hyperpod.storage import journal_writer\njournal_writer.FACTS_LIMIT_BYTES = 2_000\n"


def fill(pid: int) -> Callable[[], object]:
    """Refuse the process every further write to a file; returns what undoes it."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def beats(run: Run) -> float:
    """When the coordinator last said that it moves."""
    return (run.store.job(run.job_id).path / "coordinator.json").stat().st_mtime


def test_a_worker_with_too_many_facts_stands_still_and_loses_none(
    job: Submit, reference: Run, eventually: Wait
) -> None:
    run = job(FEW_FACTS + TRAIN, nodes=2, hang_timeout_s=1.0)
    run.until_step(4)
    make_room = fill(run.worker_pid(0))
    run.until(lambda: "waiting for room" in run.text("stderr").get(0, ""), 60)
    said_s, step = beats(run), run.view["step"]
    eventually(lambda: beats(run) > said_s + 4.0)
    run.read()
    assert (run.view["state"], run.view["step"], run.view["incidents"]) == ("running", step, []), run.story()
    make_room()
    run.finish()
    run.same_as(reference)
    assert run.view["incidents"] == []


def test_a_coordinator_does_not_leave_before_the_end_is_written(job: Submit, reference: Run, eventually: Wait) -> None:
    run = job(nodes=2, env={"PAUSE_S": "0.03"})
    run.until_step(4)
    head = run.coordinator_pid()
    make_room = fill(head)
    run.until_step(STEPS)
    done_s = beats(run)
    eventually(lambda: beats(run) > done_s + 2.0)
    run.read()
    assert run.view["state"] == "running" and run.coordinator_pid() == head
    make_room()
    run.finish()
    run.same_as(reference)
    assert run.view["incidents"] == [], "no second coordinator was needed"


def test_output_that_the_disk_refuses_to_the_end_is_counted_before_the_job_ends(job: Submit, tmp_path: Path) -> None:
    go = tmp_path / "go"
    source = f"import os, time\nprint('ready')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    # at once: in small pieces it could fill the room to the last byte, and the count would find none
    run = job(source + "print(('x' * 100 + '\\n') * 1000, end='')\n", nodes=1)
    run.until(lambda: "ready" in run.text().get(0, ""), 60)
    (journal,) = (run.store.job(run.job_id).path / "events").glob("output-*")
    agent = int(Path(f"/proc/{run.worker_pid(0)}/stat").read_text().rpartition(")")[2].split()[1])
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (journal.stat().st_size + 2000, resource.RLIM_INFINITY))
    go.touch()
    run.finish()
    assert sum(text.count("\n") for text in run.text().values()) < 1000
    (said,) = [event for event in run.of_kind("warning.raised") if " dropped: " in event.data["text"]]
    assert said.data["text"].split()[1].startswith("sample") and "File too large" in said.data["text"]
    (ended,) = [event for event in run.of_kind("job.state") if event.data["state"] == "succeeded"]
    assert said.time_s < ended.time_s and said.data["text"] in [warning["text"] for warning in run.view["warnings"]]
