"""Requests and returns nodes of jobs that schedulers run. The supervisor calls `step`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from ..backends.base import Scheduler
from ..backends.types import BASE, ELASTIC, Element, ElementPhase, LaunchRequest, Surroundings
from ..core.events import Command
from ..core.spec import STARTUP_DEADLINE, JobSpec, LaunchPlan
from ..core.units import parse_duration, plural
from ..policy.allocation import DEADLINE_S, AllocationStep, RequestedNode, avoidable, decide
from .entry import JobEntry
from .faults import NODE_SIGNALS
from .ledger import Ledger, Seen

SUBMIT_PAUSE_S = 5.0
AVOID_S = 3600.0
SENT_AGAIN_S = 15.0
CLOSE_S = 8.0
READ_S = 0.01  # for one job's journal at a time: there may be a thousand
NO_NODES_S = 10.0  # what replaces a node is usually there by then
PACKAGE = ("PYTHONPATH",)


@dataclass
class Allocation:
    """One job's dealings with its scheduler; times on the monotonic clock."""

    scheduler: Scheduler
    ledger: Ledger
    read_s: float = 0.0  # the queue of that time has been looked at
    asked_s: float = 0.0  # what the queue said before is out of date
    again_s: float = 0.0
    submits: list[tuple[str, int, Future[int]]] = field(default_factory=list)
    faults: list[tuple[Command, str, Future[None]]] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)
    sent_away: dict[str, float] = field(default_factory=dict)  # element -> when
    told: dict[str, Future[None]] = field(default_factory=dict)  # element -> whether the order to leave has reached it
    avoided: dict[str, float] = field(default_factory=dict)  # node -> until when
    cancels: list[tuple[list[str], Future[None]]] = field(default_factory=list)
    released: Future[None] | None = None
    empty_since_s: float | None = None  # since when nothing runs
    empty_reasons: set[str] = field(default_factory=set)


def wanted(spec: JobSpec, target: int) -> dict[str, int]:
    """Elements by part for a job that shall have ``target`` nodes, spares included."""
    base = min(spec.start_minimum, target)
    return {BASE: base, ELASTIC: target + spec.spares - base}


def still_leaving(sent_away: Mapping[str, float], running: Collection[str], now_s: float) -> dict[str, float]:
    """Of elements told to leave (name -> when), those that need not be told again.

    An element that was requeued keeps its name, and one that stays for long may not have received the order.
    """
    told = sent_away.items()
    return {name: told_s for name, told_s in told if name in running and now_s < told_s + SENT_AGAIN_S}


class Allocations:
    """All jobs of one supervisor whose nodes come from schedulers."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._schedulers: dict[str, tuple[str, Scheduler]] = {}  # by backend, with its title
        self._jobs: dict[str, Allocation] = {}
        self.avoided: tuple[str, ...] = ()  # nodes that were repaired too often lately

    def step(self, entry: JobEntry, plan: LaunchPlan, now_s: float) -> None:
        """Bring an unfinished job closer to the nodes it wants."""
        job = self._of(entry)
        job.scheduler.tick(now_s)
        if not job.ledger.presence.poll(READ_S):
            return
        _answer_faults(entry, job)
        _retry_cancels(entry, job, now_s)
        if not self._settle(entry, job, now_s):
            return
        elements = job.scheduler.observe(entry.job.id, job.asked_s)
        if elements is None:
            if job.scheduler.problem:
                _report_problem(entry, job.scheduler.problem)
        elif job.scheduler.fresh_s != job.read_s:
            job.read_s = job.scheduler.fresh_s
            job.ledger.update(elements, now_s)
            if not entry.ended and now_s >= job.again_s:
                self._act(entry, job, plan)

    def begun(self, entry: JobEntry) -> bool:
        """A node of the job runs, so it needs its coordinator."""
        return bool(self._of(entry).ledger.running)

    def for_head(self, entry: JobEntry, plan: LaunchPlan) -> LaunchPlan:
        """The plan of the job's coordinator, as its nodes reach it. Raises ClusterError for want of an address."""
        return self._of(entry).scheduler.for_head(plan, entry.spec.backend_options)

    def fault(self, entry: JobEntry, command: Command) -> None:
        """Break a node, as far as the scheduler reaches it; answered when the scheduler has."""
        title = entry.backend.title
        node, kind = str(command.data["node"]), str(command.data["fault"])
        job = self._of(entry)
        found = [element for element in job.ledger.running if node in element.names]
        if kind not in NODE_SIGNALS:
            entry.done(command, False, f"{title} cannot do {kind} to a node; it can {', '.join(NODE_SIGNALS)}")
        elif not found:
            entry.done(command, False, f"{title} runs nothing of this job on {node!r}")
        else:
            entry.journal.write("fault.injected", {"fault": kind, "node": node, "rank": None, "member": None})
            number = NODE_SIGNALS[kind]
            asked = job.scheduler.signal(entry.job.id, found[0].name, number)
            job.faults.append((command, f"{number.name} sent to {title}'s {found[0].name} on {node}", asked))

    def release(self, entry: JobEntry) -> bool:
        """The job has ended: give everything back; True when that is done."""
        job = self._of(entry)
        job.scheduler.tick(time.monotonic())
        if not self._settle(entry, job, time.monotonic()):
            return False
        if job.released is None and job.ledger.batches:
            job.released = job.scheduler.release(entry.job.id)
        if job.released is not None and not job.released.done():
            return False
        if job.released is not None and (error := job.released.exception()):
            entry.journal.write(
                "warning.raised", {"text": f"nodes could not be given back to {entry.backend.title}: {error}"}
            )
        del self._jobs[entry.job.id]
        return True

    def close(self, entries: Iterable[JobEntry]) -> None:
        """The cluster ends: give the nodes of all its jobs back, waiting a while for their schedulers."""
        asked = []
        for entry in entries:
            if entry.elsewhere and self._of(entry).released is None:
                scheduler = self._of(entry).scheduler
                asked.append((entry, scheduler.release(entry.job.id), scheduler.release_command(entry.job.id)))
        for _, scheduler in self._schedulers.values():
            scheduler.close(CLOSE_S)
        for entry, order, command in asked:
            if not order.done() or order.exception():
                title = entry.backend.title
                text = f"nodes could not be given back to {title}: `{command}` does, once it answers"
                entry.journal.write("warning.raised", {"text": text})

    def draining(self) -> dict[str, tuple[str, str]]:
        """Nodes to which a scheduler gives nothing new -> what people call that, and the reason that stands there."""
        told = [(title, node) for title, scheduler in self._schedulers.values() for node in scheduler.nodes.values()]
        return {node.name: (title, node.drained) for title, node in told if node.drained}

    def nodes(self, job_id: str) -> set[str]:
        """Where elements of a job run now, as far as was observed."""
        return {element.node for element in self._jobs[job_id].ledger.running} if job_id in self._jobs else set()

    def _of(self, entry: JobEntry) -> Allocation:
        if entry.job.id not in self._jobs:
            scheduler = self._scheduler(entry)
            self._jobs[entry.job.id] = Allocation(scheduler, Ledger(entry, scheduler))
        return self._jobs[entry.job.id]

    def _scheduler(self, entry: JobEntry) -> Scheduler:
        name = entry.spec.backend
        if name not in self._schedulers:
            scheduler = cast("Scheduler", entry.backend.open(self._surroundings))
            self._schedulers[name] = entry.backend.title, scheduler
        return self._schedulers[name][1]

    def _settle(self, entry: JobEntry, job: Allocation, now_s: float) -> bool:
        """Take in what was answered to submissions; False while one is under way."""
        while job.submits and job.submits[0][2].done():
            part, count, submitted = job.submits.pop(0)
            job.asked_s = now_s
            if error := submitted.exception():
                job.again_s = now_s + SUBMIT_PAUSE_S
                _report_problem(entry, str(error))
            else:
                job.ledger.record(submitted.result(), part, count)
        return not job.submits

    def _act(self, entry: JobEntry, job: Allocation, plan: LaunchPlan) -> None:
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
        wish, title = wanted(entry.spec, entry.target), entry.backend.title
        decision = decide(wish, places, minimum, _deadline_s(entry.spec), rests, title)
        _report_waiting(entry, elements)
        _report_no_nodes(entry, job, elements)
        step = decision.value
        if step == AllocationStep({}):
            return
        entry.decided(_value(step), decision.reason)
        if step.submit:
            os.makedirs(plan.log_directory, mode=0o700, exist_ok=True)
        job.avoided.update(dict.fromkeys(step.avoid, job.read_s + AVOID_S))
        # nodes run the very package that submitted, also where it is not installed
        plan = replace(plan, env={name: os.environ[name] for name in PACKAGE if name in os.environ} | dict(plan.env))
        for part, count in step.submit.items():
            request = LaunchRequest((), count, part, entry.spec.backend_options, self._avoid(entry, job, part))
            job.submits.append((part, count, job.scheduler.launch(plan, request)))
        job.given_up.update(step.give_up)
        for name in [name for name in step.give_up if name in silent]:
            text = f"{name} never joined the job: {entry.log_tail(job.scheduler.log(name))}"
            entry.journal.write("warning.raised", {"text": text})
        job.sent_away.update(dict.fromkeys(step.send_away, job.read_s))
        over = [*step.give_back, *step.give_up]
        job.ledger.dismissed.update([*over, *step.send_away])
        if over:
            job.cancels.append((over, job.scheduler.cancel(entry.job.id, over)))
            job.asked_s = time.monotonic()
        leave = partial(job.scheduler.signal, entry.job.id, number=NODE_SIGNALS["preempt"])
        job.told |= {name: leave(name) for name in step.send_away}

    def _place(self, seen: Seen, lost_s: float | None, silent_s: float | None, job: Allocation) -> RequestedNode:
        element, scheduler = seen.element, job.scheduler
        # nothing begins on a node that is drained: what was known of it before is out of date
        up_to_date = seen.began_s is not None and seen.began_s < scheduler.nodes_s
        node = scheduler.nodes.get(element.node) if up_to_date else None
        return RequestedNode(
            name=element.name,
            part=element.part,
            running=not element.waits,
            node=element.node,
            lost_s=lost_s,
            drain=node.drained if node else "",
            leaving=element.name in job.sent_away,
            held=scheduler.held(element, seen.requeued),
            silent_s=silent_s,
        )

    def _avoid(self, entry: JobEntry, job: Allocation, part: str) -> tuple[str, ...]:
        """Nodes on which nothing begins are avoided if the job can do without; offenders if nobody misses them."""
        options = entry.spec.backend_options
        serving, shared = job.scheduler.serving(options, part), job.scheduler.shares_nodes(options)
        late = {node for node, until_s in job.avoided.items() if job.read_s < until_s}
        unfit_nodes = job.ledger.unfit_nodes(since_s=job.read_s - AVOID_S) | late
        minimum, most = min(entry.spec.start_minimum, entry.target), entry.target
        without = avoidable(unfit_nodes, serving, 1 if shared else minimum)
        return without + avoidable(set(self.avoided) - unfit_nodes, serving - unfit_nodes, 1 if shared else most)


def _deadline_s(spec: JobSpec) -> float:
    """How long a node that runs may take to join; replicas of a deployment join a gateway, in their own time."""
    if spec.serve is not None:
        return math.inf
    options = spec.backend_options
    return parse_duration(options[STARTUP_DEADLINE]) if STARTUP_DEADLINE in options else DEADLINE_S


def _value(step: AllocationStep) -> dict[str, object]:
    given = {"give_back": step.give_back, "give_up": step.give_up, "send_away": step.send_away, "avoid": step.avoid}
    return {"submit": dict(step.submit)} | {name: list(names) for name, names in given.items() if names}


def _report_waiting(entry: JobEntry, elements: list[Element]) -> None:
    waiting = [element for element in elements if element.waits]
    if entry.state == "pending" and not entry.started and len(waiting) == len(elements) > 0:
        nodes = plural(len(waiting), "node")
        entry.say(f"{entry.backend.title} has not started {nodes} yet: {waiting[0].reason}")


def _report_no_nodes(entry: JobEntry, job: Allocation, elements: list[Element]) -> None:
    """Why a job that has begun has no node any more, each reason once."""
    if not elements or any(element.phase is not ElementPhase.QUEUED for element in elements):
        job.empty_since_s, job.empty_reasons = None, set()
        return
    job.empty_since_s = job.read_s if job.empty_since_s is None else job.empty_since_s
    reason = elements[0].reason
    if entry.started and job.read_s >= job.empty_since_s + NO_NODES_S and reason not in {"None", *job.empty_reasons}:
        job.empty_reasons.add(reason)
        title = entry.backend.title
        text = f"no node is left, and {title} has not started any of the {len(elements)} asked for: {reason}"
        entry.journal.write("warning.raised", {"text": text})


def _report_problem(entry: JobEntry, problem: str) -> None:
    """Why the scheduler cannot be asked: the reason for which a job waits, or a warning where it runs on."""
    if not entry.started:
        entry.say(problem)
    elif problem != entry.said:
        entry.said = problem
        entry.journal.write("warning.raised", {"text": f"{problem}; the job goes on with the nodes it has"})


def _forget_untold(job: Allocation) -> None:
    """Elements that could not be told to leave are told again in a moment."""
    for name in [name for name, told in job.told.items() if told.done()]:
        if job.told.pop(name).exception():
            job.sent_away[name] = job.read_s - SENT_AGAIN_S + SUBMIT_PAUSE_S


def _retry_cancels(entry: JobEntry, job: Allocation, now_s: float) -> None:
    """Elements that could not be ended are to be ended again."""
    for order in [order for order in job.cancels if order[1].done()]:
        job.cancels.remove(order)
        if error := order[1].exception():
            job.given_up -= set(order[0])
            job.again_s = now_s + SUBMIT_PAUSE_S
            _report_problem(entry, str(error))


def _answer_faults(entry: JobEntry, job: Allocation) -> None:
    for fault in [fault for fault in job.faults if fault[2].done()]:
        job.faults.remove(fault)
        command, sentence, asked = fault
        error = asked.exception()
        entry.done(command, error is None, str(error) if error else sentence)
