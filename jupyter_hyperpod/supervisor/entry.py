"""The supervisor's record of one unfinished job: its commands, its processes' failures, its end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..backends import load
from ..backends.types import ExitReport
from ..core.errors import HyperpodError, StoreError
from ..core.events import TERMINAL_STATES, Command, done
from ..core.kept import CAPACITY
from ..core.spec import LaunchPlan
from ..storage.environment import UNRESOLVED
from ..storage.journal import command_writer, follow_commands
from ..storage.journal_search import Search
from ..storage.journal_writer import JournalWriter
from ..storage.store import ENDED_MARK, ENDPOINT_FILE, JobStore, Store
from ..system.diagnostics import note
from .coordinator_watchdog import CoordinatorHeartbeat
from .launch import launch_plan
from .reconcile import JobFacts, ProcessFailures

WRITER, COORDINATOR = "supervisor", "coordinator"
STOP_GRACE_S = 15.0
AGENT_QUICK_LIMIT = 12
REPLICA_QUICK_LIMIT = 15  # their pauses are longer than it takes another replica to count as standing
RESULTS = ("agent-", "worker-")  # writers of what people's programs say, which is long, and of no interest here
READ_S = 0.05  # of journals per turn, before requests are answered
_LOG_LINES, _LOG_BYTES = 8, 1 << 14


class JobEntry:
    """One unfinished job. Raises SpecError or StoreError if the job cannot be read.

    A long journal takes a while: the state is complete once `recall` has returned True.
    """

    def __init__(self, store: Store, job: JobStore) -> None:
        self.job = job
        self.spec = job.spec()
        self.backend = load(self.spec.backend)
        self.store = store
        self.order = os.stat(job.path / "spec.json").st_mtime
        self.target = self.commanded = self.spec.nodes
        self.state = "pending"
        self.started = False
        self.early = False  # its coordinator was started before any of its nodes ran
        self.late_head = False  # it is started only where one runs
        self.withdrawn = False  # and is being ended again, because none does
        self.predecessor = 0  # process id of the supervisor that had started it and died
        self.ended_s: float | None = None
        self.rest_until_s = 0.0
        self.kill_at_s: float | None = None
        self.stop_reason = ""
        self.head = ProcessFailures()
        self.agents = ProcessFailures()
        self.said = ""
        self.heartbeat = CoordinatorHeartbeat(job.path / ENDPOINT_FILE)
        self.head_pid = 0
        self.standstill = ""  # why its coordinator is being ended
        self.lost_head: ExitReport | None = None  # the journal may tell that it ended the job first
        self.journal = JournalWriter(job.events, WRITER)
        self._commands = follow_commands(job.commands)
        self._told = 0  # problems of commands that are journaled
        self._done: set[tuple[str, int]] = set()
        self._plan: LaunchPlan | None = None
        self._drains: dict[str, float] = {}  # node -> when the job's head was told that it goes out of service
        self._newest_s = 0.0  # when the newest event was written
        self._history = Search(job.events, ("job.state", "command.done"), without=RESULTS)

    @property
    def elsewhere(self) -> bool:
        """Its nodes are not the supervisor's own."""
        return not self.backend.capabilities.owns_nodes

    @property
    def options(self) -> Mapping[str, str]:
        """Its options for its backend."""
        return self.spec.backend_options

    @property
    def planned(self) -> bool:
        """It is settled what a backend starts for it."""
        return self._plan is not None

    @property
    def ended(self) -> bool:
        """True once the job is in a terminal state."""
        return self.state in TERMINAL_STATES

    def recall(self, budget_s: float = math.inf) -> bool:
        """Read the journal for a limited time; True once everything that an earlier supervisor knew has been read."""
        found = self._history.poll(budget_s)
        for event in found or ():
            self._newest_s = max(self._newest_s, event.time_s)
            command = event.data.get("command")
            if event.kind == "command.done" and isinstance(command, dict):
                self._done.add((str(command.get("writer")), int(command.get("seq", 0))))
            elif event.kind == "job.state" and self.state not in TERMINAL_STATES:
                self.state = event.data["state"]
        self.started = self.started or self.state in ("running", "recovering")
        self.journal.follow(self._newest_s)
        return found is not None

    def poll_end(self, now_s: float, budget_s: float = math.inf) -> bool | None:
        """Read what is new in the journal: True where its head has written a terminal state, None where more is to be
        read than ``budget_s`` allows."""
        found = self._history.poll(budget_s)
        if found is None:
            return None
        ends = [e for e in found if e.kind == "job.state" and e.data["state"] in TERMINAL_STATES]
        if ends:
            self.close(ends[0].data["state"], now_s)
        return bool(ends)

    def commands(self) -> Iterator[Command]:
        """New commands that nobody has carried out; the target follows every `scale` that passes by."""
        for command in self._commands.poll():
            if command.kind == "scale":
                self.commanded, self.said = self.spec.clamp(command.data["target"]), ""
                if not command.writer.startswith(f"{WRITER}."):
                    self.target = self.commanded
                    self.rest_until_s = 0.0
            if (command.writer, command.seq) not in self._done:
                yield command
        if not self.started:  # its coordinator will tell
            for problem in self._commands.problems[self._told :]:
                self.warn(f"commands: {problem}")
            self._told = len(self._commands.problems)

    def knows_drain(self, node: str, joined_s: float = -math.inf) -> bool:
        """The job's head was told to let a node go; ``joined_s``: when something joined there last, for what came later
        was not meant."""
        return self._drains.get(node, -math.inf) > joined_s

    def tell_drain(self, node: str, cause: str, reason: str) -> None:
        """Tell the job's head that a node goes out of service."""
        self._drains[node] = time.time()
        with command_writer(self.job.commands, WRITER) as journal:
            journal.append("drain", {"node": node, "cause": cause, "reason": reason})

    def forget_drain(self, node: str) -> None:
        """The node is in service again."""
        self._drains.pop(node, None)

    def done(self, command: Command, ok: bool, reason: str) -> None:
        """Journal that `command` has been carried out, or why not."""
        self._done.add((command.writer, command.seq))
        self.journal.write("command.done", done(command, ok, reason))

    def plan(self, warm_key: str) -> LaunchPlan:
        """What a backend starts for this job; the warm key of the first start holds for its life."""
        if self._plan is None:
            self._plan = launch_plan(self.store, self.job, self.spec, warm_key)
        return self._plan

    def say(self, reason: str) -> None:
        """Journal why the job waits, for its start or for more nodes: one entry per new reason."""
        if reason == self.said:
            return
        self.said = reason
        if self.started:
            self.lacks(reason)
        else:
            self.journal.write("job.state", {"state": "pending", "reason": reason})
            self._decide(None, reason)

    def lacks(self, reason: str, value: Any = None) -> None:
        """Journal why a job that its coordinator serves gets no more nodes; ``value``: what was decided about them."""
        self.journal.write("decision.made", {"policy": CAPACITY, "value": value, "reason": reason})

    def warn(self, text: str) -> None:
        self.journal.write("warning.raised", {"text": text})

    def decided(self, value: Any, reason: str) -> None:
        """Journal what was done about the job's nodes; if it waits once more, that is news."""
        self.said = ""
        self._decide(value, reason)

    def _decide(self, value: Any, reason: str) -> None:
        self.journal.write("decision.made", {"policy": "scaling", "value": value, "reason": reason})

    def end(self, state: str, reason: str, now_s: float) -> None:
        """Bring the job to a terminal state from outside."""
        self.journal.write_end(self.store.root, "job.state", {"state": state, "reason": reason})
        self.close(state, now_s)

    def close(self, state: str, now_s: float) -> None:
        """The job has ended: remember it, so that no later supervisor reads its journal again."""
        self.state, self.ended_s = state, now_s
        try:
            self.job.forget_environment()
        except StoreError as error:
            note(f"the private environment variables of {self.job.id} are still there: {error}")
        with suppress(OSError):
            os.close(os.open(self.job.path / ENDED_MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def facts(self, head_up: bool, nodes: tuple[str, ...], now_s: float) -> JobFacts:
        return JobFacts(
            job_id=self.job.id,
            spec=self.spec,
            order=self.order,
            target=self.target,
            commanded=self.commanded,
            started=self.started,
            head_up=head_up,
            nodes=nodes,
            resting=self.resting(now_s),
        )

    def resting(self, now_s: float) -> bool:
        """Nothing may be started for it now."""
        return now_s < self.rest_until_s or self.kill_at_s is not None or self.lost_head is not None

    def agent_failed(self, node: str, lived_s: float, status: int | None, standing: bool, now_s: float) -> str:
        """Count it; return why the job is to be given up, if it is.

        ``standing``: others of its processes have been running for long. Where those are replicas, or one cannot fetch
        a secret, it takes nothing from them: it is tried again and again, at last once a minute.
        """
        self.agents = self.agents.after(lived_s, status)
        limit = AGENT_QUICK_LIMIT if self.spec.serve is None else REPLICA_QUICK_LIMIT
        if standing and (self.spec.serve is not None or status == UNRESOLVED):
            limit = sys.maxsize
        if reason := self.agents.too_many(self.spec.max_restarts, limit):
            return f"the agent on {node} ended with status {status}: {reason}; {self.log_tail(node)}"
        self.rest_until_s = now_s + (self.agents.pause_s() if self.agents.quick > 1 else 0.0)
        return ""

    def log_tail(self, name: str) -> str:
        """The last lines that the process on node `name` wrote, for an error message."""
        lines = self._log_lines(name)
        path = self._log(name)
        if lines is None:
            return f"no log at {path}"
        return "its last lines: " + " | ".join(lines) if lines else f"{path} is empty"

    def last_line(self, name: str) -> str:
        """The last line that the process on node `name` wrote."""
        return (self._log_lines(name) or [self.log_tail(name)])[-1]

    def _log_lines(self, name: str) -> list[str] | None:
        """The last lines of a log; None where there is none."""
        try:
            with open(self._log(name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                return file.read(_LOG_BYTES).decode(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            return None

    def _log(self, name: str) -> str:
        return f"{self.job.path}/logs/{name}.log"


def recall(reading: dict[str, JobEntry], budget_s: float = READ_S) -> Iterator[tuple[JobEntry, Exception | None]]:
    """Read the journals of jobs in turn, for ``budget_s``, so that a new supervisor answers requests in between.

    Yields jobs that are read to the end, or cannot be read, with the error; they are no longer in ``reading``.
    """
    until_s = time.monotonic() + budget_s
    for job_id, entry in list(reading.items()):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return
        del reading[job_id]
        try:
            done = entry.recall(left_s)
        except (HyperpodError, OSError, ValueError, TypeError) as error:
            yield entry, error
            continue
        if done:
            yield entry, None
        else:
            reading[job_id] = entry  # behind the others


def end_all(entries: Mapping[str, JobEntry], reading: Mapping[str, JobEntry], reason: str) -> None:
    """Bring the jobs that have not ended to their end, those too whose journals are not read yet; close all."""
    for entry in reading.values():
        entry.recall()
    for entry in {**entries, **reading}.values():
        if not entry.ended and not entry.poll_end(time.monotonic()):
            entry.end("stopped", reason, time.monotonic())
        entry.journal.close()


def unfinished(store: Store, settled: set[str], known: Collection[str]) -> Iterator[JobStore]:
    """Jobs that are neither `settled` nor `known`; those that bear the mark of their end become `settled`."""
    try:
        ids = [job_id for job_id in os.listdir(store.jobs) if not job_id.startswith(".")]
    except OSError:
        return
    for job_id in ids:
        if job_id in settled or job_id in known:
            continue
        path = store.jobs / job_id
        if (path / ENDED_MARK).exists():
            settled.add(job_id)
        elif (path / "spec.json").exists():
            if (job := JobStore(path)).has_remote_head():
                settled.add(job_id)
            else:
                yield job
