"""Handles the end of a job's process: restarts its head, counts failures, gives the job up."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ..backends.base import Host
from ..backends.types import HEAD, ExitReport
from ..storage.environment import UNRESOLVED
from ..storage.store import ENDPOINT_FILE
from .coordinator_watchdog import journal_loss
from .entry import READ_S, STOP_GRACE_S, JobEntry
from .reconcile import QUICK_S

AGENT_REST_S = 0.5


class ProcessEnds:
    """Looks after the processes of jobs on this machine, as long as this host ``serves`` the store."""

    def __init__(self, host: Host, serves: Callable[[], bool]) -> None:
        self._host = host
        self._serves = serves

    def check_head(self, entry: JobEntry, now_s: float) -> None:
        """Kill a head that stands still."""
        head = self._host.head.jobs.get(entry.job.id)
        if head is not None and head.pid and not entry.standstill:
            entry.head_pid = head.pid
            entry.standstill = entry.heartbeat.standstill(head.pid, now_s)
            if entry.standstill:
                self._host.signal(entry.job.id, HEAD, signal.SIGKILL)

    def judge_early_head(self, entry: JobEntry, runs: bool, begins: bool) -> None:
        """A coordinator that was started before any node of its job ran stays where one ``runs``, and goes where none
        ``begins``: such a job waits without one."""
        if runs:
            entry.early = False
        elif not begins:
            entry.early = entry.started = False
            entry.withdrawn = True
            self._host.signal(entry.job.id, HEAD, signal.SIGKILL)

    def enforce_stop(self, entry: JobEntry, kill_at_s: float, now_s: float) -> None:
        """A job was told to stop: its head ends it; the supervisor does if there is no head, or if it is late."""
        if entry.job.id not in self._host.head.jobs and self._host.head.state != "starting":
            if entry.poll_end(now_s, READ_S) is False:
                self._give_up(entry, "stopped", entry.stop_reason)
        elif now_s > kill_at_s:
            self._give_up(entry, "stopped", f"{entry.stop_reason} (it did not end by itself within {STOP_GRACE_S:g} s)")

    def on_exit(self, entry: JobEntry, report: ExitReport) -> None:
        """A process of the job has ended."""
        now_s = time.monotonic()
        if entry.ended:
            return
        if report.node == HEAD and (entry.withdrawn or entry.early):
            self._forget_early_head(entry, now_s)
        elif report.node == HEAD:
            self.replace_head(entry, report, now_s)
        elif report.status == 0:
            entry.rest_until_s = now_s + AGENT_REST_S
        elif report.status is not None:
            self._count_agent(entry, report, now_s)
        else:
            entry.rest_until_s = now_s  # lost with its node: it is replaced at once, whatever others had failed of

    def _forget_early_head(self, entry: JobEntry, now_s: float) -> None:
        """A head is gone before any node of its job ran, so nothing is lost with it."""
        if not entry.withdrawn:  # it failed
            if not self._serves():
                return  # another host's serves the job
            entry.early = entry.started = False
            entry.late_head = True
        entry.withdrawn, entry.standstill = False, ""
        if not entry.poll_end(now_s):
            (entry.job.path / ENDPOINT_FILE).unlink(missing_ok=True)

    def replace_head(self, entry: JobEntry, report: ExitReport, now_s: float) -> None:
        """A job's head is gone: start it again, unless it had ended the job, or has left it to another host's."""
        if not self._serves():
            return
        ended = entry.poll_end(now_s, READ_S)
        entry.lost_head = report if ended is None else None
        if ended is False:
            self._restart_head(entry, report, now_s)

    def _restart_head(self, entry: JobEntry, report: ExitReport, now_s: float) -> None:
        journal_loss(entry.journal, entry.heartbeat, entry.head_pid, report.status, entry.standstill)
        entry.standstill = ""
        entry.head = entry.head.after(report.lived_s, report.status)
        status = "was lost with its host" if report.status is None else f"ended with status {report.status}"
        if reason := entry.head.too_many(entry.spec.max_restarts):
            self._give_up(entry, "failed", f"the job's coordinator {status}: {reason}; {entry.log_tail(HEAD)}")
            return
        entry.rest_until_s = now_s + entry.head.pause_s()
        count = f"{entry.head.total} of {entry.spec.max_restarts}"
        entry.warn(f"the job's coordinator {status} and is started again ({count})")

    def _count_agent(self, entry: JobEntry, report: ExitReport, now_s: float) -> None:
        born_s = [node.born_s[entry.job.id] for node in self._host.nodes.values() if entry.job.id in node.born_s]
        standing = any(now_s - since_s > QUICK_S for since_s in born_s)
        if report.status == UNRESOLVED:
            if not standing:  # it would be the same again
                self._give_up(entry, "failed", entry.last_line(report.node))
                return
            entry.warn(f"{entry.last_line(report.node)}; the others go on without it")
        if reason := entry.agent_failed(report.node, report.lived_s, report.status, standing, now_s):
            self._give_up(entry, "failed", reason)

    def _give_up(self, entry: JobEntry, state: str, reason: str) -> None:
        self._host.release(entry.job.id)
        entry.end(state, reason, time.monotonic())
