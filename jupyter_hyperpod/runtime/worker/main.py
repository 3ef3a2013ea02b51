"""The worker's process: waits for its turn, runs the user's cell and reports the result."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import Fenced, NotFound, StoreError
from ...policy import parity
from ...storage import values
from ...storage.apart.hand_in import settle
from ...storage.environment import kernel_choices
from ...storage.fingerprint import record as fingerprint
from ...storage.journal_writer import JournalWriter
from ...system.addresses import BIND_VARIABLE
from ...system.diagnostics import note
from .. import cell_by_cell
from ..comm.mesh import listen
from ..connection import Channel
from ..context import MEMBER_VARIABLE, Context
from ..lone_training import LoneTraining
from ..progress import WorkerProgress
from ..protocol import facts, orders, replica
from ..protocol.codec import Message, decode, encode
from . import adapters, cell, displays, pictures, spawned
from .own_modules import record_own_modules
from .replica import ReplicaRank

SETTLES_S = 1.0
OWN_FOLDER = "folder"  # in the job's, for what it writes where its working directory is gone
GONE = (
    "the folder {folder}, from which the job was submitted, is gone: what the code reads or writes without a full path "
    "is in {here}"
)
OTHERS = (
    "the packages here are not those with which the job was submitted: {changes}. Results may differ from those of "
    "other members; install the same versions, or submit again"
)


@dataclass
class Worker:
    """The worker process, for the Session in it."""

    context: Context
    channel: Channel  # the source of orders: the agent, or for a follower its leader
    agent: Channel
    progress: WorkerProgress
    listener: socket.socket
    member: str
    rank: int | None = None  # when the cell began; None for a newcomer
    present_rank: int | None = None  # None for a newcomer
    world_size: int = 0
    sessions: int = 0
    end: Any = None  # a checkpoint.ended.SessionEnd: that of the session before, until the cell opens the next one
    unfinished: str = ""  # why no session may begin now: see open_session
    loop_line: int = 0  # of the session that began last
    place: ReplicaRank = field(default_factory=ReplicaRank)
    kernel_choices: Mapping[str, str] = field(default_factory=dict)  # variables, when the cell began
    inbox: list[Message] = field(default_factory=list)
    reporter: JournalWriter | None = None

    def is_first(self) -> bool:
        """Whether this is rank 0 now."""
        return self.present_rank == 0 and self.place.shard == 0

    def whereabouts(self) -> tuple[int, int]:
        """The session and the step in which the cell is, both from 0."""
        return self.sessions, self.progress.read()[1]

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message from the coordinator, waiting at most ``timeout_s`` (None: for ever)."""
        if not self.inbox:
            select.select([self.channel], [], [], timeout_s)
            self.inbox.extend(order for found in self.channel.receive() if (order := decode(found)) is not None)
            if self.channel.closed and not self.inbox:
                raise Fenced("who gives orders to this process is gone")
        return self.inbox.pop(0) if self.inbox else None

    def send(self, message: Message) -> None:
        """Send to the coordinator, through the agent."""
        self.agent.send(encode(message))
        self.agent.flush(5.0)

    def journal(self, kind: str, data: dict[str, Any]) -> None:
        """Write an event as this worker; waits until the lease shows that it is not fenced."""
        self.progress.wait_until_allowed()
        if self.reporter is None:
            self.reporter = JournalWriter(self.context.job.events, f"worker-{self.member}")
        if self.reporter.crowded:
            self.flush_journal()
        self.reporter.write(kind, data)

    def watch_training(self) -> LoneTraining | None:
        """Have it told where the cell trains on each of several members by itself."""

        def warn(text: str) -> None:
            if self.is_first():
                self.journal("warning.raised", {"text": text})

        several = self.world_size > 1 and self.place.size == 1
        return LoneTraining(self.world_size, lambda: self.sessions, warn) if several else None

    def flush_journal(self) -> None:
        """Wait until every fact of this worker is on the disk, without being taken for hung."""
        if self.reporter is not None:
            _, step, phase = self.progress.read()

            def stand_by() -> None:
                self.progress.touch(phase, step)
                self.progress.wait_until_allowed()

            stand_by()
            self.reporter.settle(stand_by)

    def hand_in(self) -> None:
        """Wait until the head of the job has every fact of this node, where its store is another one."""
        said = ""
        while problem := settle(self.context.job.path, SETTLES_S):
            if problem != said:
                said = problem
                note(f"{self.member} waits to end: {problem}")
            self.progress.touch("done", 0)
            time.sleep(SETTLES_S)


_current: Worker | None = None


def current() -> Worker | None:
    """The worker this process is, or None outside a job."""
    return _current


def switched_on(component: str) -> bool:
    """Whether one of `core.spec.COMPONENTS` is used; outside a job all are."""
    return _current is None or component in _current.context.spec.components


def main(context: Context, channel: Channel, progress: WorkerProgress, *links: Channel, shard: int = 0) -> int:
    """The worker's life after the fork; returns its exit status (0: the cell ended well).

    ``links`` lead to the other ranks of its replica: from its leader (``shard`` 0) to each, from each to the leader.
    """
    global _current
    address = context.bind_address()
    if BIND_VARIABLE in os.environ:
        os.environ[BIND_VARIABLE] = address  # for libraries that listen on behalf of the cell
    listener = listen(address)
    host, port = listener.getsockname()[:2]
    place = ReplicaRank(shard, links, context.spec.replica)
    source = channel if shard == 0 else links[0]
    me = Worker(context, source, channel, progress, listener, context.member(os.getpid()), place=place)
    os.environ[MEMBER_VARIABLE] = me.member
    _current = me
    if (ports := place.assemble(port)) is not None:
        me.send(facts.WorkerReady(os.getpid(), host, port, ports))
    try:
        while not isinstance(order := me.receive(None), orders.RunCell):
            pass
    except Fenced:
        return 0
    me.rank, me.world_size = order.rank, order.world_size
    me.present_rank = me.rank
    environment = place.environment(order)
    _prepare(context, environment | (_launched(context, order, environment) if place.size == 1 else {}))
    if gone := enter_folder(context.spec.working_directory, context.job.path):
        me.journal("warning.raised", {"text": f"{context.node}: {gone}"})
    progress.touch("user", 0)
    if shard == 0:
        displays.begin(displays.Displays(me.send, me.whereabouts, me.is_first))
    adapters.begin()
    cell_by_cell.note(progress.under_way)
    record_own_modules(context.job.path)
    if difference := _other_environment(context.job.path):
        me.journal("warning.raised", {"text": f"{context.node}: {difference}"})
    cell_source = Path(context.cell).read_text()
    if not context.spec.script:
        spawned.begin(cell_source, context.job.path)
    me.kernel_choices = kernel_choices()
    lone = me.watch_training()
    outcome = cell.run(cell_source, context.spec, me.is_first, context.job.path)
    if lone is not None:
        lone.end()
    if outcome is cell.DONE and context.spec.pull and me.is_first():
        values.leave(context.job.path, context.spec.pull, vars(sys.modules["__main__"]))
        context.job.leave_values(context.job.path / values.PULLED)
    me.flush_journal()
    progress.touch("done", 0)
    me.hand_in()
    if isinstance(outcome, facts.CellFailed):
        me.send(outcome)
    if outcome is not cell.DONE:
        return 1
    if shard == 0:
        me.send(facts.CellDone(progress.detected))
    place.send(replica.RankEnded())
    return 0


def _other_environment(job: Path) -> str:
    """A sentence about Python and packages that are not those with which the job was submitted; "" where none is."""
    try:
        there = fingerprint.of_job(job)
    except (NotFound, StoreError):
        return ""
    here = fingerprint.of_member(job.parents[1] / fingerprint.CACHE)
    changed = parity.of_members(there, here)
    return OTHERS.format(changes=parity.sentence(changed)) if changed else ""


def _launched(context: Context, run: orders.RunCell, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that torchrun sets for the only rank of a node."""
    return {
        "GROUP_RANK": environment["RANK"],
        "GROUP_WORLD_SIZE": environment["WORLD_SIZE"],
        "ROLE_RANK": environment["RANK"],
        "ROLE_WORLD_SIZE": environment["WORLD_SIZE"],
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": context.job.id,
        "TORCHELASTIC_RESTART_COUNT": str(run.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(context.spec.script_restarts),
    }


def _prepare(context: Context, environment: Mapping[str, str]) -> None:
    """Environment as torchrun gives it, seeds and threads: before the first line of the cell."""
    os.environ.update(environment)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS reads it: see session.determinism
    pictures.prepare(os.environ)
    adapters.seed_everything(context.spec.seed, context.spec.threads)


def enter_folder(folder: str, job: Path) -> str:
    """Go to the job's working directory, or to a folder of its own where this process is in the store without it.

    Return a sentence about the second, else "".
    """
    if folder and os.path.isdir(folder):
        os.chdir(folder)
    elif folder and _is_in(job.parent.parent):
        own = job / OWN_FOLDER
        own.mkdir(mode=0o700, exist_ok=True)
        os.chdir(own)
        return GONE.format(folder=folder, here=own)
    return ""


def _is_in(folder: Path) -> bool:
    """Whether this process is in a folder, or in one that is gone."""
    try:
        return Path.cwd().is_relative_to(folder.resolve())
    except FileNotFoundError:
        return True
