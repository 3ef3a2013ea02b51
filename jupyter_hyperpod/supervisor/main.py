"""The daemon that owns the nodes of one store: it starts and ends processes, as `reconcile` and `policy` decide.

    python -m jupyter_hyperpod.supervisor.main --store DIR --nodes N --spares K

It may die at any moment: jobs go on, and the next supervisor adopts them. SIGTERM makes it leave and leave all running;
only the request `stop` ends nodes and jobs. One host at a time serves a store (`succession.py`).
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from ..backends import host, load
from ..backends.base import Host
from ..backends.source import source_digest
from ..backends.types import ExitReport, LaunchRequest, NodeReport, Report, Surroundings
from ..control.cluster import EXIT_LOCKED, SOCKET
from ..control.clusters.shape import forget_shape, keep_shape, local_shape, said_of_late_nodes, settled_shape
from ..core.backends import DEFAULT_BACKEND
from ..core.errors import ClusterError, HyperpodError, SpecError
from ..storage.journal import command_writer, forget_oldest
from ..storage.journal_writer import JournalWriter
from ..storage.store import JobStore, Store
from ..system.diagnostics import note
from ..system.processes import raise_descriptor_limit
from .allocation.allocations import Allocations
from .coordinator_watchdog import journal_new_host, journal_takeover
from .entry import WRITER, JobEntry, end_all, recall, unfinished
from .healing import Healing
from .idle_watch import IdleWatch
from .job_commands import carry_out
from .launch import OF_HEADS, PRELOAD, Renewal, digest_of, in_turn, successor, supervisor_arguments
from .lock import Lock, take_lock
from .machines import Machines, runs_on
from .process_ends import ProcessEnds
from .reconcile import Action, Begin, Fail, Rescale, Wait, reconcile
from .requests import Requests
from .scheduled import ScheduleWatch
from .step_pace import STANDBY_TICK_S, StepPace
from .succession import Succession, begin_turn

SCAN_EVERY_S = 2.0
LINGER_S = 1.0
JOURNALS_KEPT = 8
ClusterShape = tuple[int, int, Mapping[str, int], bool]  # nodes, spare ones, queues, whether networks are isolated


class Supervisor:
    """One store's supervisor; `run` returns when it has been told to stop or to leave."""

    def __init__(self, store: Store, lock: Lock, succession: Succession, shape: ClusterShape) -> None:
        self.store = store
        self.lock = lock
        self.directory = lock.directory
        self.succession = succession
        self._take_shape(*shape)
        forget_oldest(store.cluster_events, JOURNALS_KEPT, f"{WRITER}.")
        self.selector = selectors.DefaultSelector()
        self.journal = JournalWriter(store.cluster_events, WRITER)
        self.entries: dict[str, JobEntry] = {}
        self.reading: dict[str, JobEntry] = {}  # their journals are not read to the end
        self.settled: set[str] = set()  # jobs that have ended or cannot be read: not looked at again
        about = (shape[-1], successor(), str(store.root), OF_HEADS)
        surroundings = Surroundings(self.directory, self.selector, self._on_report, os.environ, PRELOAD, *about)
        self.host: Host = host(surroundings)
        self._ends, self._renewal = ProcessEnds(self.host, succession.holds), Renewal(self.host)
        self.allocations = Allocations(surroundings)
        self.leaving = self.stopping = False
        self.stop_reason = ""
        self._machines = Machines()
        self.healing = Healing(store, self.host, self.entries, self.allocations, self.journal, self._machines)
        self.scheduled = ScheduleWatch(store)
        self.idle = IdleWatch(self)
        self._scanned_s = -SCAN_EVERY_S
        self._problem = self._trouble = ""
        self._before = 0  # the supervisor before this one, if it died

    def _take_shape(self, nodes: int, spares: int, queues: Mapping[str, int], isolated: bool) -> None:
        self.queues = dict(queues)
        self.shape = {f"node-{i + 1}": i >= nodes for i in range(nodes + spares)}
        keep_shape(self.directory, nodes, spares, self.queues, isolated)

    def extend(self, nodes: int, spares: int, queues: Mapping[str, int]) -> None:
        """Local nodes for a supervisor that has only looked after jobs elsewhere so far."""
        said = said_of_late_nodes(self.store, nodes, spares)
        self._take_shape(nodes, spares, queues, False)
        self.host.extend(self.shape)
        self._say("running", said)

    # -- life --------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to stop (everything ends) or to leave (everything goes on without a supervisor)."""
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        left_behind = (self.directory / SOCKET).exists()
        requests = Requests(self, self.selector)
        self.host.open(self.shape)
        if self.succession.turn or self._stand_by():
            self._serve(self.lock.before if left_behind else 0)
        if self.stopping and self.succession.turn and self.succession.holds():
            self._say("stopping", self.stop_reason)
        requests.close()  # first: where the socket is left, our end counts as a death
        self.healing.close()
        self.scheduled.close()
        if self.stopping and self.succession.turn and self.succession.holds():
            self._end_everything()
        elif self.stopping or self.succession.over:
            self.host.close()  # what is elsewhere is the business of another host
        return 0

    def _stand_by(self) -> bool:
        """Keep an interpreter warm until the host that serves the store is lost; False where nothing is left to do."""
        note(f"stands by for {self.store.root}, which {self.succession.served or 'no host'} serves")
        for job_id in list(self.host.head.jobs):
            self.host.release(job_id)  # of an earlier turn of this host
        while not (self.leaving or self.stopping or self.succession.over):
            if self.succession.turn or self.succession.try_to_take(time.monotonic()):
                return True
            self.attend(STANDBY_TICK_S)
            self._guard(lambda: self.host.tick(time.monotonic()))
            self.stopping = self.stopping or not self.lock.still_there()
        return False

    def _serve(self, before: int) -> None:
        self._say("starting", "the supervisor starts")
        self._before = before
        self._step()
        self._before = 0
        self._say("running", self.succession.said())
        note(f"serves {self.store.root}; nodes: {len(self.shape)}, spare: {sum(self.shape.values())}")
        pace = StepPace()
        while not (self.leaving or self.stopping or self.succession.over):
            news = self.attend(0.0 if self.reading else pace.patience_s(time.monotonic()))
            if self.reading or pace.due(news, time.monotonic()):
                pace.take(partial(self._guard, self._step))

    def attend(self, patience_s: float) -> bool:
        """Answer requests and hear reports; False where none came within ``patience_s``."""
        heard = self.selector.select(patience_s)
        for key, _ in heard:
            self._guard(key.data)
        return bool(heard)

    def _say(self, state: str, reason: str) -> None:
        facts = {"state": state, "reason": reason, "nodes": list(self.shape), "pid": os.getpid()}
        facts |= {"queues": self.queues, "idle": self.idle.ended}
        write = partial(self.journal.write_end, self.store.root) if state == "stopped" else self.journal.write
        write("cluster.state", facts)

    def stop(self, reason: str) -> None:
        """End every job and every node after this turn."""
        self.stopping, self.stop_reason = True, reason

    def _leave(self, *_: object) -> None:
        self.leaving = True

    def _guard(self, act: Callable[[], None]) -> None:
        """Nothing that goes wrong for one job or one request may take the supervisor down."""
        try:
            act()
        except Exception as error:
            text = str(error) if isinstance(error, HyperpodError) else traceback.format_exc()
            if text != self._trouble:
                note(text)
            self._trouble = text

    def _step(self) -> None:
        now_s = time.monotonic()
        if not self.lock.still_there():
            note("the store has been deleted: ending")
            self.stop("the store has been deleted")
            return
        if not self.succession.renew(now_s):
            note(f"{self.succession.served} has taken over: the processes of this host end")
            return
        self._guard(lambda: self.host.tick(now_s))
        if now_s - self._scanned_s >= SCAN_EVERY_S:
            self._scanned_s = now_s
            for job in unfinished(self.store, self.settled, {*self.entries, *self.reading}):
                self.load(job)
            self._guard(self.scheduled.step)
        self.read_on()
        for entry in list(self.entries.values()):
            self._guard(partial(self._step_job, entry, now_s))
        self._guard(lambda: self.healing.step(now_s))
        self._reconcile(now_s)
        self._machines.write_states(self.host.nodes.values(), self.journal)
        self._guard(self.idle.step)
        self._report_problem()

    def _report_problem(self) -> None:
        self.journal.flush()
        if self.journal.problem != self._problem:
            self._problem = self.journal.problem
            note(self._problem or "the store can be written again")

    # -- jobs --------------------------------------------------------------------------------------------------

    def load(self, job: JobStore) -> None:
        """Begin to look after a job."""
        try:
            entry = JobEntry(self.store, job)
        except (HyperpodError, OSError, ValueError) as error:
            self._ignore(job, error)
            if isinstance(error, SpecError):
                journal = JournalWriter(job.events, WRITER)
                journal.write("job.state", {"state": "failed", "reason": str(error)})
                journal.close()
            return
        entry.predecessor = self._before
        self.reading[job.id] = entry

    def _ignore(self, job: JobStore, error: Exception) -> None:
        self.settled.add(job.id)
        note(f"{job.id} cannot be read and is left alone: {error}")

    def read_on(self) -> None:
        """What the journals of jobs tell of the time before."""
        for entry, error in recall(self.reading):
            if error is not None:
                self._ignore(entry.job, error)
            else:
                self._adopt(entry)

    def _adopt(self, entry: JobEntry) -> None:
        job = entry.job
        self.entries[job.id] = entry
        if not (self.shape or entry.elsewhere or entry.ended):
            shape = local_shape(self.store)
            self.extend(shape["nodes"], shape["spares"], shape["queues"])
        entry.started = entry.started or job.id in self.host.head.jobs
        if entry.ended:
            entry.close(entry.state, time.monotonic())
        elif entry.started and entry.elsewhere and self.succession.before:
            journal_new_host(entry.journal, entry.heartbeat, self.succession)
        elif entry.started and entry.predecessor:
            journal_takeover(entry.journal, entry.predecessor, os.getpid(), self.lock.lost_s)

    def _step_job(self, entry: JobEntry, now_s: float) -> None:
        if not (entry.job.path / "spec.json").exists():
            self._forget(entry)
            return
        entry.journal.flush()
        if entry.ended:
            self._clean_up(entry, now_s)
            return
        for command in entry.commands():
            carry_out(entry, command, now_s, self.host, self.entries, self.allocations)
        self._ends.check_head(entry, now_s)
        if entry.lost_head is not None:
            self._ends.replace_head(entry, entry.lost_head, now_s)
        if entry.kill_at_s is not None and not entry.ended:
            self._ends.enforce_stop(entry, entry.kill_at_s, now_s)

    def _forget(self, entry: JobEntry) -> None:
        """The job's directory has been deleted: end its processes, there is nothing left to write to."""
        here = runs_on(entry.job.id, self.host.head, *self.host.nodes.values())
        self.host.release(entry.job.id)
        entry.state = "stopped"
        if not here:
            note(f"{entry.job.id} has been deleted")
            entry.journal.close()
            del self.entries[entry.job.id]

    def _clean_up(self, entry: JobEntry, now_s: float) -> None:
        released = not entry.elsewhere or self.allocations.release(entry)
        here = runs_on(entry.job.id, self.host.head, *self.host.nodes.values())
        if not here or now_s - (entry.ended_s or now_s) > LINGER_S:
            self.host.release(entry.job.id)
        if not here and released and entry.journal.flush():
            entry.journal.close()
            del self.entries[entry.job.id]

    # -- reconciling -------------------------------------------------------------------------------------------

    def _reconcile(self, now_s: float) -> None:
        nodes = self.host.nodes.values()
        machines = [self._machines.machine(node, now_s) for node in nodes]
        held = self._machines.held(nodes, now_s)
        facts = []
        for entry in self.entries.values():
            if not entry.ended and entry.elsewhere:
                self._guard(partial(self._allocate, entry, now_s))
            elif not entry.ended:
                facts.append(entry.facts(entry.job.id in self.host.head.jobs, tuple(held[entry.job.id]), now_s))
        self._guard(partial(self.allocations.weigh, now_s))
        if any(not entry.elsewhere for entry in self.reading.values()):
            return  # nobody knows yet what those want that have run for long
        for action in reconcile(facts, machines, self.queues) if facts else ():
            self._guard(partial(self._act, action, now_s))

    def _allocate(self, entry: JobEntry, now_s: float) -> None:
        """The nodes are the scheduler's business; the coordinator runs here, from when the first of them does."""
        if entry.resting(now_s):
            return
        allocation = self.allocations.of(entry)
        plan = entry.plan(self.host.warm_key if entry.started or entry.planned else digest_of(int(now_s)))
        if entry.target != entry.commanded:
            self._rescale(entry, Rescale(entry.job.id, entry.target, f"its owner asks for a target of {entry.target}"))
        else:
            allocation.step(plan, now_s, self.allocations.avoided)
        if entry.ended:
            return
        runs = bool(allocation.ledger.running)
        begins = runs if entry.late_head else allocation.begins
        up = entry.job.id in self.host.head.jobs
        if up and entry.early:
            self._ends.judge_early_head(entry, runs, begins)
        if up or not (entry.started or begins):
            return
        if self.host.head.state != "starting" and (entry.started or not self._renewal.due(entry.spec.python)):
            if (for_head := allocation.for_head(plan)) is None:
                return
            entry.early = not (entry.started or runs)
            if self.host.launch_head(in_turn(for_head, self.succession.turn)):
                allocation.head_begins()
                entry.started = True

    def _act(self, action: Action, now_s: float) -> None:
        entry = self.entries[action.job_id]
        if isinstance(action, Wait):
            entry.say(action.reason)
        elif isinstance(action, Fail):
            entry.end("failed", action.reason, now_s)
        elif isinstance(action, Rescale):
            self._rescale(entry, action)
        else:
            self._begin(entry, action)

    def _rescale(self, entry: JobEntry, action: Rescale) -> None:
        with command_writer(entry.job.commands, WRITER) as journal:
            journal.append("scale", {"target": action.target, "lends": action.target < entry.target})
        entry.commanded = action.target
        entry.decided(action.target, action.reason)

    def _begin(self, entry: JobEntry, action: Begin) -> None:
        if self.host.head.state == "starting" or (not entry.started and self._renewal.due(entry.spec.python)):
            return
        # a job that was started before this supervisor goes on with the source it was started with
        plan = entry.plan(self.host.warm_key if entry.started else source_digest())
        head_up = entry.job.id in self.host.head.jobs or self.host.launch_head(in_turn(plan, self.succession.turn))
        launched = {node: self.host.launch(plan, LaunchRequest((node,))) for node in action.nodes if head_up}
        begun = [node for node, answer in launched.items() if answer.exception() is None]
        if begun:
            entry.decided({"nodes": begun}, action.reason)
        entry.started = entry.started or head_up

    # -- what the host reports ---------------------------------------------------------------------------------

    def _on_report(self, report: Report) -> None:
        if isinstance(report, ExitReport):
            if report.job_id in self.entries:
                self._ends.on_exit(self.entries[report.job_id], report)
        elif isinstance(report, NodeReport) and not report.up:
            self._machines.write_states(self.host.nodes.values(), self.journal)

    def _end_everything(self) -> None:
        self.allocations.close(self.entries.values())
        self.host.close()
        forget_shape(self.directory, self.idle.ended)
        end_all(self.entries, self.reading, self.stop_reason)
        self._say("stopped", self.stop_reason)
        self.journal.close()
        self.succession.leave()
        note(f"stopped: {self.stop_reason}")


def main(arguments: list[str] | None = None) -> int:
    """Entry point; exit status 3 where another supervisor serves the store."""
    parser = supervisor_arguments()
    options = parser.parse_args(arguments)
    if problem := load(DEFAULT_BACKEND).missing():
        parser.error(problem)
    try:
        raise_descriptor_limit()
        asked = (options.nodes, options.spares, options.queues, options.isolate_network)
        lock = take_lock(options.store, options.succeed, options.since)
        succession = begin_turn(lock, options)
        supervisor = Supervisor(options.store, lock, succession, settled_shape(options.store, *asked))
    except ClusterError as error:
        note(str(error))
        return EXIT_LOCKED
    try:
        return supervisor.run()
    except HyperpodError as error:
        note(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
