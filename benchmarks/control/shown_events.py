"""A cluster of many nodes and one job that trains, as their journals say it: `python -m … STORE JOB NODES`.

Nothing trains. A line on standard input is the number of events per second from then on, ``0`` is a pause, ``stop`` the
end; each line is answered by the newest step. A tenth of the events are lines that say when they were written, a tenth
changes of nodes, the others steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_hyperpod.storage.journal import RecordWriter, event_writer
from jupyter_hyperpod.storage.store import Store

from .written_jobs import MEMBERS_LIST, WrittenJob

TURN_S = 0.01


def node_state(number: int, state: str, reason: str) -> dict[str, Any]:
    """What the supervisor says of a node."""
    facts = {"node": f"node-{number}", "state": state, "reason": reason, "spare": False, "slots": 1, "used": 0}
    return facts | {"jobs": [], "pid": 1000 + number, "incarnation": 1}


def begin(store: Store, nodes: int) -> None:
    """All nodes are idle."""
    with event_writer(store.cluster_events, "supervisor") as journal:
        names = [f"node-{number}" for number in range(nodes)]
        journal.append("cluster.state", {"state": "running", "reason": "all are there", "nodes": names, "pid": 1})
        for number in range(nodes):
            journal.append("node.state", node_state(number, "idle", "it is ready"))


class Shown:
    """The job, and the cluster's journal."""

    def __init__(self, store: Store, job_id: str, nodes: int) -> None:
        self.job = WrittenJob(store.job(job_id))
        self.job.begin()
        self._printed = event_writer(store.job(job_id).events, "agent")
        self._cluster: RecordWriter[Any] = event_writer(store.cluster_events, "supervisor")
        self._nodes, self._count = nodes, 0

    def event(self) -> None:
        """Write the next event."""
        self._count += 1
        if self._count % 10 == 3:
            text = f"tick {self._count} at {int(time.time() * 1000)}\n"
            said = {key: MEMBERS_LIST[0][key] for key in ("member", "node", "rank")}
            self._printed.append("output.written", said | {"stream": "stdout", "text": text})
        elif self._count % 10 == 7:
            state = "busy" if self._count % 20 == 7 else "idle"
            self._cluster.append("node.state", node_state(self._count * 7 % self._nodes, state, "as scheduled"))
        else:
            self.job.commit(self.job.step + 1)

    def close(self) -> None:
        self.job.close()
        self._printed.close()
        self._cluster.close()


def serve(shown: Shown) -> None:
    """Write events at the rate that standard input asks for."""
    os.set_blocking(sys.stdin.fileno(), False)
    rate, owed, before_s = 0.0, 0.0, time.monotonic()
    while True:
        if line := sys.stdin.buffer.readline().strip():
            if line == b"stop":
                return
            rate, owed = float(line), 0.0
            print(shown.job.step, flush=True)
        time.sleep(TURN_S)
        now_s = time.monotonic()
        owed, before_s = owed + rate * (now_s - before_s), now_s
        while owed >= 1:
            shown.event()
            owed -= 1


if __name__ == "__main__":
    it = Shown(Store(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
    serve(it)
    it.close()
