"""The supervisor's watchdog of coordinators: ends one that hangs, and journals the loss as an incident."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

from ..backends.types import HEAD
from ..storage.host_lease import this_host
from ..storage.journal_writer import JournalWriter
from ..system.processes import is_stopped
from .succession import Succession

SILENT_S = 3.0
STOPPED_S = 1.0
AWAY_S = 1.0
SUPERVISOR = "supervisor"


class CoordinatorHeartbeat:
    """Whether one job's coordinator is alive: it touches its endpoint file twice per second."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self._seen = (0, 0)
        self._since_s = 0.0
        self._asked_s = 0.0
        self._moved_s = 0.0  # like `_since_s`, but never excused
        self.injected_s = -math.inf  # when a fault was injected into it, on the monotonic clock

    def standstill(self, pid: int, now_s: float) -> str:
        """Why the coordinator with this process id has to be ended, or ""; call it at least once per second."""
        if (away_s := now_s - self._asked_s) > AWAY_S:  # the whole machine may have stood still
            self._since_s += away_s
        self._asked_s = now_s
        try:
            seen = (os.stat(self._endpoint).st_mtime_ns, pid)
        except OSError:
            return ""
        if seen != self._seen:
            self._seen, self._since_s, self._moved_s = seen, now_s, now_s
            return ""
        silent_s = now_s - self._since_s
        if silent_s > STOPPED_S and is_stopped(pid):
            return f"its process was stopped, and it gave no sign of life for {silent_s:.1f} s"
        if silent_s > SILENT_S and self._belongs_to(pid):
            return f"it gave no sign of life for {silent_s:.1f} s, limit {SILENT_S:g} s"
        return ""

    def fault_s(self, status: int | None, standstill: str) -> float | None:
        """When the coordinator was lost, in seconds since the Unix epoch: its injection, or its last sign of life.

        ``status``: how its process ended, None where it was lost with its host; None where nobody knows when.
        """
        if standstill:
            return time.time() - (time.monotonic() - max(self._moved_s, self.injected_s))
        if status is not None:
            return time.time()  # the end of a process is told at once
        try:
            return min(time.time(), os.stat(self._endpoint).st_mtime)
        except OSError:
            return None

    def _belongs_to(self, pid: int) -> bool:
        """A coordinator that is still reading its journal has not written the file yet."""
        try:
            return bool(json.loads(self._endpoint.read_text())["pid"] == pid)
        except (OSError, ValueError, LookupError, TypeError):
            return False


def journal_loss(
    journal: JournalWriter, heartbeat: CoordinatorHeartbeat, pid: int, status: int | None, standstill: str
) -> None:
    """Journal that a job lost its coordinator; the next one takes the incident up."""
    if standstill:
        cause, detail = "coordinator hung", standstill
    elif status is not None and status < 0:
        cause, detail = "coordinator killed", f"its process {pid} ended with {signal.Signals(-status).name}"
    else:
        cause = "coordinator died"
        detail = "it was lost with its host" if status is None else f"its process {pid} ended with status {status}"
    stages = {
        "detected": f"the job's coordinator was lost: {cause}",
        "diagnosed": detail,
        "fenced": "its connections are closed; members train on without it",
    }
    _journal_stages(journal, f"c{pid}", cause, HEAD, stages, heartbeat.fault_s(status, standstill))


def journal_new_host(journal: JournalWriter, heartbeat: CoordinatorHeartbeat, turn: Succession) -> None:
    """Journal that a job's coordinator was lost with its host, or left it; the one of this turn takes it up."""
    before, here = turn.before, this_host()
    stages = {
        "detected": f"{here} was asked to take over from {before}"
        if turn.asked
        else f"the host of the job's coordinator, {before}, gave no sign of life",
        "diagnosed": f"{before} leaves; {here} takes over"
        if turn.asked
        else f"{before} did not renew its lease of the store; {here} takes over",
        "fenced": "a coordinator of an earlier turn may not decide any more; members whose lease ends stand still",
    }
    cause = "coordinator moved" if turn.asked else "host of the coordinator lost"
    since_s = time.time() if turn.asked else heartbeat.fault_s(None, "")
    _journal_stages(journal, f"h{turn.turn}", cause, HEAD, stages, since_s)


def journal_takeover(journal: JournalWriter, before: int, now: int, since_s: float | None) -> None:
    """Journal that the supervisor of a running job was lost ``since_s`` (Unix epoch; None: not known) and is back."""
    stages = {
        "detected": "the cluster's supervisor was lost",
        "diagnosed": f"process {before} ended without taking its leave",
        "repaired": f"process {now} took over and adopted the nodes",
        "resumed": "the job did not wait for it",
    }
    _journal_stages(journal, f"s{now}", "supervisor killed", SUPERVISOR, stages, since_s)


def _journal_stages(
    journal: JournalWriter, name: str, cause: str, node: str, stages: dict[str, str], since_s: float | None
) -> None:
    for stage, text in stages.items():
        record = {"incident": name, "stage": stage, "cause": cause, "node": node, "rank": None, "rung": None}
        known = {"since_s": round(since_s, 6)} if stage == "detected" and since_s is not None else {}
        journal.write("incident.stage", record | {"text": text} | known)
