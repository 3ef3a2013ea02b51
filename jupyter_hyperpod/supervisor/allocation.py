"""The nodes of jobs that SLURM runs: how many more to ask for, which to give back. The supervisor calls `step`."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from ..backends.slurm.commands import Slurm
from ..backends.slurm.script import BASE, BIND, ELASTIC, ELASTIC_PARTITION, QUEUED, WAITING, Element
from ..core.errors import ClusterError
from ..core.events import Command
from ..core.spec import STARTUP_DEADLINE, JobSpec, LaunchPlan
from ..core.units import parse_duration, plural
from ..policy.allocation import DEADLINE_S, Place, Step, decide
from .entry import Entry
from .ledger import Ledger, Seen, names

SUBMIT_PAUSE_S = 5.0
AVOID_S = 3600.0
SENT_AGAIN_S = 15.0
CLOSE_S = 8.0
READ_S = 0.01  # for one job's journal at a time: there may be a thousand
BARE_S = 10.0  # what replaces a node is usually there by then
PACKAGE = ("PYTHONPATH",)
NEVER = "launch failed"  # SLURM holds what it could not start once; only a person would release it
DELAYED = ("BeginTime", "None")  # what SLURM says of what it has just requeued
REQUEUED = "SLURM lets what it has requeued wait for `cred_expire`, two minutes by default, whatever is idle"
SIGNALS = {"kill": "KILL", "hang": "STOP", "preempt": "USR1"}


@dataclass
class Allocation:
    """One job's dealings with SLURM; times on the monotonic clock."""

    ledger: Ledger
    read_s: float = 0.0  # the queue of that time has been looked at
    asked_s: float = 0.0  # what the queue said before is out of date
    again_s: float = 0.0
    submits: list[tuple[str, int, Future[int]]] = field(default_factory=list)
    faults: list[tuple[Command, str, Future[str]]] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)
    sent_away: dict[str, float] = field(default_factory=dict)  # element -> when
    told: dict[str, Future[str]] = field(default_factory=dict)  # element -> whether the order to leave has reached it
    avoided: dict[str, float] = field(default_factory=dict)  # node -> until when
    cancels: list[tuple[list[str], Future[str]]] = field(default_factory=list)
    released: Future[str] | None = None
    bare_s: float | None = None  # since when nothing runs
    bare_said: set[str] = field(default_factory=set)


def wanted(spec: JobSpec, target: int) -> dict[str, int]:
    """Elements by part for a job that shall have ``target`` nodes, spares included."""
    base = min(spec.start_minimum, target)
    return {BASE: base, ELASTIC: target + spec.spares - base}


def still_leaving(sent_away: Mapping[str, float], running: Collection[str], now_s: float) -> dict[str, float]:
    """Of elements told to leave (name -> when), those that need not be told again.

    What SLURM has queued again has the name of what was told, and what stays for long may not have heard it.
    """
    told = sent_away.items()
    return {name: told_s for name, told_s in told if name in running and now_s < told_s + SENT_AGAIN_S}


def without(
    options: Mapping[str, str], avoided: Collection[str], serving: Collection[str], needed: int
) -> dict[str, str]:
    """A person's options, with nodes excluded beside those they exclude themselves, if ``needed`` others serve.

    ``serving``: nodes that get work; none where that is not known yet.
    """
    if not avoided or (serving and len(set(serving) - set(avoided)) < needed):
        return dict(options)
    excluded = [name for name in (options.get("exclude", ""), *sorted(avoided)) if name]
    return dict(options) | {"exclude": ",".join(excluded)}


def why_held(seen: Seen) -> str:
    """Why SLURM will not start an element that waits, or not soon; "" where it may. What a person holds stays held."""
    element = seen.element
    if element.state in WAITING and NEVER in element.reason.lower():
        return element.reason
    return REQUEUED if seen.requeued and element.reason in DELAYED else ""


def _partition(spec: JobSpec, part: str) -> str:
    base = spec.slurm.get("partition", "")
    return spec.slurm.get(ELASTIC_PARTITION, base) if part == ELASTIC else base


class Allocations:
    """All jobs of one supervisor whose nodes come from SLURM."""

    def __init__(self) -> None:
        self._slurm = Slurm()
        self._jobs: dict[str, Allocation] = {}
        self.avoided: tuple[str, ...] = ()  # nodes that were repaired too often lately

    def step(self, entry: Entry, plan: LaunchPlan, now_s: float) -> None:
        """Bring an unfinished job closer to the nodes it wants."""
        self._slurm.tick()
        job = self._of(entry)
        if not job.ledger.caught_up(READ_S):
            return
        _answer_faults(entry, job)
        _look_at_cancels(entry, job, now_s)
        if not self._settle(entry, job, now_s):
            return
        elements = self._slurm.elements(entry.job.id, job.asked_s)
        if elements is None:
            if self._slurm.problem:
                _tell_problem(entry, self._slurm.problem)
        elif self._slurm.fresh_s != job.read_s:
            job.read_s = self._slurm.fresh_s
            job.ledger.update(elements, now_s)
            if not entry.ended and now_s >= job.again_s:
                self._act(entry, job, plan)

    def begun(self, entry: Entry) -> bool:
        """A node of the job runs, so it needs its coordinator."""
        return bool(self._of(entry).ledger.running)

    def fault(self, entry: Entry, command: Command) -> None:
        """Break a node, as far as SLURM reaches it; answered when SLURM has."""
        node, kind = str(command.data["node"]), str(command.data["fault"])
        job = self._of(entry)
        found = [element for element in job.ledger.running if node in names(element)]
        if kind not in SIGNALS:
            entry.done(command, False, f"SLURM cannot do {kind} to a node; it can {', '.join(SIGNALS)}")
        elif not found:
            entry.done(command, False, f"SLURM runs nothing of this job on {node!r}")
        else:
            entry.pen.write("fault.injected", {"fault": kind, "node": node, "rank": None, "member": None})
            asked = self._slurm.signal(found[0].name, SIGNALS[kind])
            job.faults.append((command, f"SIG{SIGNALS[kind]} sent to SLURM's {found[0].name} on {node}", asked))

    def release(self, entry: Entry) -> bool:
        """The job has ended: give everything back; True when that is done."""
        job = self._of(entry)
        self._slurm.tick()
        if not self._settle(entry, job, time.monotonic()):
            return False
        if job.released is None and job.ledger.arrays:
            job.released = self._slurm.cancel_job(entry.job.id)
        if job.released is not None and not job.released.done():
            return False
        if job.released is not None and (error := job.released.exception()):
            entry.pen.write("warning.raised", {"text": f"nodes could not be given back to SLURM: {error}"})
        del self._jobs[entry.job.id]
        return True

    def close(self, entries: Iterable[Entry]) -> None:
        """The cluster ends: give the nodes of all its jobs back, waiting a while for SLURM."""
        asked = []
        for entry in entries:
            if entry.elsewhere and self._of(entry).released is None:
                asked.append((entry, self._slurm.cancel_job(entry.job.id)))
        self._slurm.close(CLOSE_S)
        for entry, order in asked:
            if not order.done() or order.exception():
                text = f"nodes could not be given back to SLURM: `scancel --name={entry.job.id}` does, once it answers"
                entry.pen.write("warning.raised", {"text": text})

    def draining(self) -> dict[str, str]:
        """Nodes that SLURM gives nothing new, with the reason that stands at each."""
        return dict(self._slurm.draining)

    def nodes(self, job_id: str) -> set[str]:
        """Where SLURM runs elements of a job now, as far as the queue was read."""
        return {element.node for element in self._jobs[job_id].ledger.running} if job_id in self._jobs else set()

    def _of(self, entry: Entry) -> Allocation:
        if entry.job.id not in self._jobs:
            self._jobs[entry.job.id] = Allocation(Ledger(entry, self._slurm))
        return self._jobs[entry.job.id]

    def _settle(self, entry: Entry, job: Allocation, now_s: float) -> bool:
        """Take in what SLURM has answered to submissions; False while one is under way."""
        while job.submits and job.submits[0][2].done():
            part, count, submitted = job.submits.pop(0)
            job.asked_s = now_s
            if error := submitted.exception():
                job.again_s = now_s + SUBMIT_PAUSE_S
                _tell_problem(entry, str(error))
            else:
                job.ledger.record(submitted.result(), part, count)
        return not job.submits

    def _act(self, entry: Entry, job: Allocation, plan: LaunchPlan) -> None:
        seen, lost, silent = job.ledger.seen, job.ledger.lost(job.read_s), job.ledger.silent(job.read_s)
        _forget_untold(job)
        # what is active all the same is ordinary again: a controller that was restarted does not know its end
        job.given_up -= {name for name in job.given_up if name in seen and not seen[name].element.active}
        job.sent_away = still_leaving(job.sent_away, {element.name for element in job.ledger.running}, job.read_s)
        known = [one for name, one in seen.items() if one.element.active and name not in job.given_up]
        elements = [one.element for one in known]
        places = [self._place(one, lost.get(one.element.name), silent.get(one.element.name), job) for one in known]
        minimum = min(entry.spec.start_minimum, entry.target)
        rests = job.read_s < job.ledger.rest_until_s
        decision = decide(wanted(entry.spec, entry.target), places, minimum, _deadline_s(entry.spec), rests)
        _tell_waiting(entry, elements)
        _tell_bare(entry, job, elements)
        step = decision.value
        if step == Step({}):
            return
        entry.decided(_value(step), decision.reason)
        if step.submit:
            os.makedirs(plan.log_directory, mode=0o700, exist_ok=True)
        job.avoided.update(dict.fromkeys(step.avoid, job.read_s + AVOID_S))
        # nodes run the very package that submitted, also where it is not installed
        plan = replace(plan, env={name: os.environ[name] for name in PACKAGE if name in os.environ} | dict(plan.env))
        for part, count in step.submit.items():
            options = self._options(entry, job, part)
            job.submits.append((part, count, self._slurm.submit(plan, options, part, count)))
        job.given_up.update(step.give_up)
        for name in [name for name in step.give_up if name in silent]:
            text = f"{name} never joined the job: {entry.log_tail('slurm-' + name.replace('_', '-'))}"
            entry.pen.write("warning.raised", {"text": text})
        job.sent_away.update(dict.fromkeys(step.send_away, job.read_s))
        over = [*step.give_back, *step.give_up]
        job.ledger.dismissed.update([*over, *step.send_away])
        if over:
            job.cancels.append((over, self._slurm.cancel(over)))
            job.asked_s = time.monotonic()
        job.told |= {name: self._slurm.signal(name, SIGNALS["preempt"]) for name in step.send_away}

    def _place(self, seen: Seen, lost_s: float | None, silent_s: float | None, job: Allocation) -> Place:
        element = seen.element
        running = element.state not in WAITING
        # SLURM begins nothing on a node that is drained: what was known of it before is out of date
        up_to_date = seen.began_s is not None and seen.began_s < self._slurm.draining_s
        drain = self._slurm.draining.get(element.node, "") if up_to_date else ""
        leaving = element.name in job.sent_away
        return Place(
            element.name, element.part, running, element.node, lost_s, drain, leaving, why_held(seen), silent_s
        )

    def _options(self, entry: Entry, job: Allocation, part: str) -> dict[str, str]:
        """Nodes on which nothing begins are excluded if the job can do without; offenders if nobody misses them."""
        serving, shared = self._slurm.serving(_partition(entry.spec, part)), "cpus-per-task" in entry.spec.slurm
        late = {node for node, until_s in job.avoided.items() if job.read_s < until_s}
        misfits = job.ledger.misfits(since_s=job.read_s - AVOID_S) | late
        minimum, most = min(entry.spec.start_minimum, entry.target), entry.target
        options = without(entry.spec.slurm, misfits, serving, 1 if shared else minimum)
        return without(options, set(self.avoided) - misfits, serving - misfits, 1 if shared else most)


def _deadline_s(spec: JobSpec) -> float:
    """How long a node that runs may take to join; replicas of a deployment join a gateway, in their own time."""
    if spec.serve is not None:
        return math.inf
    return parse_duration(spec.slurm[STARTUP_DEADLINE]) if STARTUP_DEADLINE in spec.slurm else DEADLINE_S


def _value(step: Step) -> dict[str, object]:
    given = {"give_back": step.give_back, "give_up": step.give_up, "send_away": step.send_away, "avoid": step.avoid}
    return {"submit": dict(step.submit)} | {name: list(names) for name, names in given.items() if names}


def _tell_waiting(entry: Entry, elements: list[Element]) -> None:
    waiting = [element for element in elements if element.state in WAITING]
    if entry.state == "pending" and not entry.started and len(waiting) == len(elements) > 0:
        entry.say(f"SLURM has not started {plural(len(waiting), 'node')} yet: {waiting[0].reason}")


def _tell_bare(entry: Entry, job: Allocation, elements: list[Element]) -> None:
    """Why a job that has begun has no node any more, each reason once."""
    if not elements or any(element.state not in QUEUED for element in elements):
        job.bare_s, job.bare_said = None, set()
        return
    job.bare_s = job.read_s if job.bare_s is None else job.bare_s
    reason = elements[0].reason
    if entry.started and job.read_s >= job.bare_s + BARE_S and reason not in {"None", *job.bare_said}:
        job.bare_said.add(reason)
        text = f"no node is left, and SLURM has not started any of the {len(elements)} asked for: {reason}"
        entry.pen.write("warning.raised", {"text": text})


def _tell_problem(entry: Entry, problem: str) -> None:
    """Why SLURM cannot be asked: the reason for which a job waits, or a warning where it runs on."""
    if not entry.started:
        entry.say(problem)
    elif problem != entry.said:
        entry.said = problem
        entry.pen.write("warning.raised", {"text": f"{problem}; the job goes on with the nodes it has"})


def _forget_untold(job: Allocation) -> None:
    """What SLURM could not tell to leave is told again in a moment."""
    for name in [name for name, told in job.told.items() if told.done()]:
        if job.told.pop(name).exception():
            job.sent_away[name] = job.read_s - SENT_AGAIN_S + SUBMIT_PAUSE_S


def _look_at_cancels(entry: Entry, job: Allocation, now_s: float) -> None:
    """What SLURM has refused to end is asked for again."""
    for order in [order for order in job.cancels if order[1].done()]:
        job.cancels.remove(order)
        if error := order[1].exception():
            job.given_up -= set(order[0])
            job.again_s = now_s + SUBMIT_PAUSE_S
            _tell_problem(entry, str(error))


def _answer_faults(entry: Entry, job: Allocation) -> None:
    for fault in [fault for fault in job.faults if fault[2].done()]:
        job.faults.remove(fault)
        command, sentence, asked = fault
        error = asked.exception()
        entry.done(command, error is None, str(error) if error else sentence)


def for_head(plan: LaunchPlan, spec: JobSpec) -> LaunchPlan:
    """The plan of a coordinator that nodes reach over the network. Raises ClusterError where it cannot be known how."""
    address = spec.slurm.get(BIND) or socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        raise ClusterError(
            f"{socket.gethostname()} means {address} here, which compute nodes cannot reach; "
            f"say where they can: --slurm {BIND}=ADDRESS"
        )
    return replace(plan, env={**plan.env, "HYPERPOD_BIND": address})
