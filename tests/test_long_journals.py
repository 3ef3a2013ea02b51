"""A supervisor that begins on journals which take several times its watchdog's patience answers, and is not killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.backends.local import supervisor_watchdog
from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.events import decode_event
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_search import Search
from jupyter_hyperpod.storage.store import Store
from tests.strangers import Wait

ANSWER_S = 8.0  # on a busy machine; the watchdog waits for longer
TIMES = 1.3  # by how much it takes longer to read than the watchdog waits
PIECE = 20_000


def write_history(directory: Path, duration_s: float) -> Path:
    """States of a job that recovers again and again, as many as take so much CPU time to read; returns their file."""
    with event_writer(directory, "coordinator") as writer:
        name = writer.name
    line = b'{"v":1,"writer":"%s","seq":%d,"time_s":%f,"kind":"job.state",'
    line += b'"data":{"state":"%s","reason":"step 7 committed"}}\n'
    began_s, states = time.time() - 86_400.0, (b"recovering", b"running")

    def lines(begin: int, count: int) -> list[bytes]:
        numbers = range(begin, begin + count)
        return [line % (name.encode(), n, began_s + n / 1000, states[n % 2]) for n in numbers]

    asked_s = time.process_time()
    for each in lines(1, PIECE):
        decode_event(each)
    pieces = round(duration_s / (time.process_time() - asked_s))
    with open(directory / f"{name}.jsonl", "ab") as file:
        for piece in range(pieces):
            file.write(b"".join(lines(1 + piece * PIECE, PIECE)))
    return directory / f"{name}.jsonl"


@pytest.mark.timeout(600)
def test_a_supervisor_answers_while_it_reads_and_is_not_killed(cluster: Store, eventually: Wait) -> None:
    control.wait_ready(cluster)
    job_id = jobs.submit(cluster, "import time\ntime.sleep(3600)", nodes=1, spares=0)
    jobs.wait(cluster, job_id, {"running"}, 60)
    history = write_history(cluster.job(job_id).events, TIMES * supervisor_watchdog.SILENT_S)
    before = int(control.request(cluster, {"op": "status"})["pid"])
    os.kill(before, signal.SIGKILL)

    def successor() -> dict[str, Any] | None:
        try:
            found = control.request(cluster, {"op": "status"}, timeout_s=ANSWER_S)
        except ClusterError:
            return None
        return found if found["pid"] != before else None

    found = eventually(successor, 120.0)
    pid, answers = found["pid"], 0
    while found["reading"]:
        found = control.request(cluster, {"op": "status"}, timeout_s=ANSWER_S)
        assert found["pid"] == pid, "it was killed"
        assert job_id in found["jobs"]
        answers += 1
    assert answers > 10, "the journal is not long enough"
    small = jobs.submit(cluster, "print('small')", nodes=1, spares=0)
    assert jobs.wait(cluster, small, timeout_s=120)["state"] == "succeeded"
    assert control.request(cluster, {"op": "status"})["pid"] == pid
    history.unlink()  # the fixture reads all journals at the end


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    search = Search(tmp_path, ("job.state",), without=("agent-",))
    with (
        event_writer(tmp_path, "b") as one,
        event_writer(tmp_path, "a") as two,
        event_writer(tmp_path, "agent-1") as no,
    ):
        for number in range(4000):
            one.append("job.state", {"state": "running", "reason": f"{number} {'x' * 200}"})
            two.append("warning.raised", {"text": "job.state"})
            no.append("job.state", {"state": "failed", "reason": "nobody of importance"})
        answers = []
        while (found := search.poll(0.0)) is None:
            answers.append(found)
        assert answers, "it is not read at once"
        assert [int(event.data["reason"].split()[0]) for event in found] == list(range(4000))
        assert search.poll() == []
        two.append("job.state", {"state": "succeeded", "reason": ""})
        path = tmp_path / f"{one.name}.jsonl"
        whole = one.append("job.state", {"state": "stopped", "reason": ""})
        content = path.read_bytes()
        path.write_bytes(content[:-10])  # half of it is there
        assert [event.data["state"] for event in search.poll() or ()] == ["succeeded"]
        path.write_bytes(content)
        assert search.poll() == [whole]


@pytest.mark.parametrize("budget_s", [0.0, 1.0])
def test_a_search_of_nothing_is_over(tmp_path: Path, budget_s: float) -> None:
    assert Search(tmp_path / "missing", ("job.state",)).poll(budget_s) == []
