"""Requests and returns nodes of jobs that schedulers run. The supervisor calls `step`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ...backends.base import Scheduler
from ...backends.types import BASE, ELASTIC, Element, ElementPhase, LaunchRequest
from ...core.backend_options import STARTUP_DEADLINE
from ...core.errors import ClusterError
from ...core.events import Command
from ...core.spec import JobSpec, LaunchPlan
from ...core.units import parse_duration, plural
from ...policy.allocation import DEADLINE_S, AllocationStep, RequestedNode, avoidable, decide
from ..entry import JobEntry
from ..faults import NODE_SIGNALS
from .gangs import Gathering
from .ledger import Ledger, Seen

SUBMIT_PAUSE_S = 5.0
AVOID_S = 3600.0
SENT_AGAIN_S = 15.0
READ_S = 0.01  # for one job's journal at a time: there may be a thousand
NO_NODES_S = 10.0  # what replaces a node is usually there by then
LACKS_EVERY_S = 60.0  # a scheduler that counts nodes in its reasons has a new one at every look
PACKAGE = ("PYTHONPATH",)


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


@dataclass
class _Submit:
    """Nodes that are asked for, and when that was answered: a query that begins later may have seen them."""

    part: str
    count: int
    batch: Future[int]
    answered_s: float = math.inf

    def __post_init__(self) -> None:
        self.batch.add_done_callback(self._answered)

    def _answered(self, _: Future[int]) -> None:
        self.answered_s = time.monotonic()


@dataclass
class _Room:
    """Nodes that are to be left to another job; nothing is requested until then. 0 ``nodes``: they are left."""

    nodes: int
    reason: str
    until_s: float


class Allocation:
    """One job's nodes, as requested from its scheduler; times on the monotonic clock."""

    def __init__(self, entry: JobEntry, scheduler: Scheduler) -> None:
        self.entry = entry
        self.scheduler = scheduler
        self.ledger = Ledger(entry, scheduler)
        self.gathering = Gathering(entry, entry.backend.place(entry.options))
        self.released: Future[None] | None = None
        self._title = entry.backend.title
        self._read_s = 0.0  # the queue of that time has been looked at
        self._asked_s = 0.0  # what the queue said before is out of date
        self._again_s = 0.0
        self._submits: list[_Submit] = []
        self._faults: list[tuple[Command, str, Future[None]]] = []
        self._cancels: list[tuple[list[str], Future[None]]] = []
        self._given_up: set[str] = set()
        self._sent_away: dict[str, float] = {}  # element -> when
        self._told: dict[str, Future[None]] = {}  # element -> whether the order to leave has reached it
        self._late: dict[str, float] = {}  # node on which nothing joined in time -> until when it is avoided
        self._empty_since_s: float | None = None  # since when nothing runs
        self._empty_reasons: set[str] = set()
        self._lacks, self._lacks_s = "", -math.inf  # why it was last said to have too few nodes, and when
        self._room: _Room | None = None

    def step(self, plan: LaunchPlan, now_s: float, offenders: Collection[str]) -> None:
        """Bring an unfinished job closer to the nodes it wants; ``offenders``: nodes that fail again and again."""
        self.scheduler.tick(now_s)
        if not self.ledger.presence.poll(READ_S):
            return
        self._answer_faults()
        self._retry_cancels(now_s)
        if not self._settle(now_s):
            return
        fresh_s = self.scheduler.fresh_s  # before the elements, which are at least as new
        elements = self.scheduler.observe(self.entry.job.id, self._asked_s)
        for sentence in self.scheduler.news(self.entry.job.id):
            self.entry.decided(None, sentence)
        if elements is None:
            if self.scheduler.problem:
                self.report_problem(self.scheduler.problem)
        elif fresh_s != self._read_s:
            self._read_s = fresh_s
            self.ledger.update(elements, now_s)
            if not self.entry.ended and now_s >= self._again_s:
                self._act(plan, offenders)

    @property
    def begins(self) -> bool:
        """Whether nodes run, or are about to run at once."""
        return bool(self.ledger.running) or self.scheduler.expects(self.entry.job.id, self._read_s)

    def for_head(self, plan: LaunchPlan) -> LaunchPlan | None:
        """The plan of the job's coordinator; None where its nodes could not reach it, for which the job waits then."""
        try:
            return self.scheduler.for_head(plan, self.entry.options)
        except ClusterError as error:
            self.entry.late_head = True
            if self.ledger.running:
                self.report_problem(str(error))
            return None

    def head_begins(self) -> None:
        """The job's coordinator is started: say for what it waits, where it is the first one."""
        if not self.entry.started:
            self.entry.say(f"{self._title} starts the job's nodes, whose programs join it then")

    def fault(self, command: Command) -> None:
        """Break a node, as far as the scheduler reaches it; answered when the scheduler has."""
        entry, title = self.entry, self._title
        node, kind = str(command.data["node"]), str(command.data["fault"])
        found = [element for element in self.ledger.running if node in element.names]
        if kind not in NODE_SIGNALS:
            entry.done(command, False, f"{title} cannot do {kind} to a node; it can {', '.join(NODE_SIGNALS)}")
        elif not found:
            entry.done(command, False, f"{title} runs nothing of this job on {node!r}")
        else:
            entry.journal.write("fault.injected", {"fault": kind, "node": node, "rank": None, "member": None})
            number = NODE_SIGNALS[kind]
            asked = self.scheduler.signal(entry.job.id, found[0].name, number)
            self._faults.append((command, f"{number.name} sent to {title}'s {found[0].name} on {node}", asked))

    def make_room(self, nodes: int, reason: str, until_s: float) -> None:
        """See `gangs.Gathers`. What waits is given back first, or it would get the nodes that are left."""
        self._room, self.gathering.gang = _Room(nodes, reason, until_s), None
        found = [seen.element for seen in self.ledger.seen.values() if seen.element.name not in self._given_up]
        if waiting := [one.name for one in found if one.waits]:
            self._cancels.append((waiting, self.scheduler.withdraw(self.entry.job.id, waiting)))
            self._asked_s = time.monotonic()

    def ask_again(self) -> None:
        """See `gangs.Gathers`."""
        self._room = None

    def _leave(self, elements: Collection[Element], begun: bool, now_s: float) -> None:
        """Leave nodes to another job as soon as nothing waits that could let this one compute meanwhile."""
        room = self._room
        if room is None or self._cancels:
            return
        running = [one for one in elements if not one.waits and one.name not in self._sent_away]
        if len(running) >= self.gathering.needs(begun) or now_s >= room.until_s:
            self._room = None
        elif room.nodes and len(running) == len(elements):
            mine = [one.name for one in running if one.part == BASE][: room.nodes]
            room.nodes = 0
            self.entry.lacks(room.reason, {"leave": mine})
            self._end(mine)

    def release(self) -> bool:
        """The job has ended: give everything back; True when that is done."""
        self.scheduler.tick(time.monotonic())
        if not self._settle(time.monotonic()):
            return False
        if self.released is None:
            if not self.ledger.batches:
                return True
            self.released = self.scheduler.release(self.entry.job.id)
        if not self.released.done():
            return False
        if error := self.released.exception():
            self.entry.warn(f"nodes could not be given back to {self._title}: {error}")
        return True

    def report_kept(self) -> None:
        """The cluster ends: say how a person gives the nodes back, where the scheduler has not taken them."""
        if self.released is None or not self.released.done() or self.released.exception():
            command = self.scheduler.release_command(self.entry.job.id)
            self.entry.warn(f"nodes could not be given back to {self._title}: `{command}` does, once it answers")

    def _settle(self, now_s: float) -> bool:
        """Take in what was answered to submissions; False while one is under way."""
        while self._submits and self._submits[0].batch.done():
            submitted = self._submits.pop(0)
            self._asked_s = min(submitted.answered_s, now_s)
            if error := submitted.batch.exception():
                self._again_s = now_s + SUBMIT_PAUSE_S
                if self.entry.ended:
                    continue
                if isinstance(error, ClusterError) and error.final and not self.ledger.batches:
                    self.entry.end("failed", str(error), now_s)
                else:
                    self.report_problem(str(error))
            else:
                self.ledger.record(submitted.batch.result(), submitted.part, submitted.count)
        return not self._submits

    def _act(self, plan: LaunchPlan, offenders: Collection[str]) -> None:
        entry, seen, now_s = self.entry, self.ledger.seen, self._read_s
        lost, silent = self.ledger.lost(now_s), self.ledger.silent(now_s)
        self._forget_untold()
        # what is active all the same is ordinary again: a controller that was restarted does not know its end
        self._given_up -= {name for name in self._given_up if name in seen and not seen[name].element.active}
        self._sent_away = still_leaving(self._sent_away, {element.name for element in self.ledger.running}, now_s)
        known = [one for name, one in seen.items() if one.element.active and name not in self._given_up]
        elements = [one.element for one in known]
        self._leave(elements, self.ledger.presence.begun, now_s)
        places = [self._place(one, lost.get(one.element.name), silent.get(one.element.name)) for one in known]
        minimum = min(entry.spec.start_minimum, entry.target)
        decision = decide(
            wanted(entry.spec, entry.target),
            places,
            minimum,
            _deadline_s(entry.spec),
            now_s < self.ledger.rest_until_s or self._room is not None,
            self._title,
            alike=entry.spec.serve is not None,
        )
        counted = [element for element in elements if element.name not in self._sent_away]
        if self._room is None:
            self._gather(counted, now_s)
        self._report_waiting(elements)
        self._report_lacking(elements)
        self._report_no_nodes(elements)
        step = decision.value
        if step == AllocationStep({}):
            return
        entry.decided(_value(step), decision.reason)
        if step.submit:
            os.makedirs(plan.log_directory, mode=0o700, exist_ok=True)
        for node, reason in {place.node: place.drain for place in places if place.name in step.announce}.items():
            entry.tell_drain(node, "out of service", reason)
        self._late.update(dict.fromkeys(step.avoid, now_s + AVOID_S))
        # nodes run the very package that submitted, also where it is not installed
        plan = replace(plan, env={name: os.environ[name] for name in PACKAGE if name in os.environ} | dict(plan.env))
        for part, count in step.submit.items():
            request = LaunchRequest((), count, part, entry.options, self._avoid(part, offenders))
            self._submits.append(_Submit(part, count, self.scheduler.launch(plan, request)))
        self._given_up.update(step.give_up)
        for name in [name for name in step.give_up if name in silent]:
            entry.warn(f"{name} never joined the job: {entry.log_tail(self.scheduler.log(name))}")
        self._sent_away.update(dict.fromkeys(step.send_away, now_s))
        self.ledger.dismissed.update(step.send_away)
        self._end([*step.give_back, *step.give_up])
        for name in step.send_away:
            self._told[name] = self.scheduler.signal(entry.job.id, name, NODE_SIGNALS["preempt"])

    def _gather(self, elements: list[Element], now_s: float) -> None:
        presence, scheduler = self.ledger.presence, self.scheduler
        keeps = any(presence.keeps(one.names) for one in elements if not one.waits)
        queued = [one for one in elements if one.phase is ElementPhase.QUEUED]
        lacks_node = bool(queued) and all(scheduler.lacks_node(one) for one in queued)
        self.gathering.look(elements, presence.begun, keeps, lacks_node, now_s)

    def _end(self, names: list[str]) -> None:
        self.ledger.dismissed.update(names)
        if names:
            self._cancels.append((names, self.scheduler.cancel(self.entry.job.id, names)))
            self._asked_s = time.monotonic()

    def _place(self, seen: Seen, lost_s: float | None, silent_s: float | None) -> RequestedNode:
        element, scheduler = seen.element, self.scheduler
        # nothing begins on a node that is drained: what was known of it before is out of date
        up_to_date = seen.began_s is not None and seen.began_s < scheduler.nodes_s
        node = scheduler.nodes.get(element.node) if up_to_date else None
        deployed = self.entry.spec.serve is not None
        return RequestedNode(
            name=element.name,
            part=element.part,
            running=not element.waits,
            node=element.node,
            lost_s=lost_s,
            drain=node.drained if node else "",
            # `Healing` asks the job, with the reason
            told=bool(not deployed and node and node.drained and node.health and node.health.fences),
            announced=not deployed or self.entry.knows_drain(element.node, self.ledger.presence.joined(element.names)),
            leaving=element.name in self._sent_away,
            held=scheduler.held(element, seen.requeued),
            silent_s=silent_s,
            ready=not deployed or not self.ledger.presence.members.isdisjoint(element.names),
        )

    def _avoid(self, part: str, offenders: Collection[str]) -> tuple[str, ...]:
        """Nodes on which nothing begins are avoided if the job can do without; offenders if nobody misses them."""
        entry, options = self.entry, self.entry.options
        serving, shared = self.scheduler.serving(options, part), self.scheduler.shares_nodes(options)
        late = {node for node, until_s in self._late.items() if self._read_s < until_s}
        unfit = self.ledger.unfit_nodes(since_s=self._read_s - AVOID_S) | late
        minimum, most = min(entry.spec.start_minimum, entry.target), entry.target
        without = avoidable(unfit, serving, 1 if shared else minimum)
        return without + avoidable(set(offenders) - unfit, serving - unfit, 1 if shared else most)

    def _forget_untold(self) -> None:
        """Elements that could not be told to leave are told again in a moment."""
        for name in [name for name, told in self._told.items() if told.done()]:
            if self._told.pop(name).exception():
                self._sent_away[name] = self._read_s - SENT_AGAIN_S + SUBMIT_PAUSE_S

    def _retry_cancels(self, now_s: float) -> None:
        """Elements that could not be ended are to be ended again."""
        for order in [order for order in self._cancels if order[1].done()]:
            self._cancels.remove(order)
            if error := order[1].exception():
                self._given_up -= set(order[0])
                self._again_s = now_s + SUBMIT_PAUSE_S
                self.report_problem(str(error))

    def _answer_faults(self) -> None:
        for fault in [fault for fault in self._faults if fault[2].done()]:
            self._faults.remove(fault)
            command, sentence, asked = fault
            error = asked.exception()
            self.entry.done(command, error is None, str(error) if error else sentence)

    def _report_waiting(self, elements: list[Element]) -> None:
        entry, waiting = self.entry, [element for element in elements if element.waits]
        if entry.state == "pending" and not entry.started and len(waiting) == len(elements) > 0:
            entry.say(f"{self._title} has not started {plural(len(waiting), 'node')} yet: {waiting[0].reason}")

    def _report_lacking(self, elements: list[Element]) -> None:
        """Why a job that its coordinator serves gets no more nodes, now and then while that changes."""
        queued = self._not_begun(elements)
        least = 1 if self.ledger.presence.begun else 0  # where none is left, there is a warning
        if not self.entry.started or not queued or not least <= len(elements) - len(queued) < self.entry.target:
            self._lacks, self._lacks_s = "", self._read_s + NO_NODES_S - LACKS_EVERY_S
            return
        reason = queued[0].reason
        lacks = f"{self._title} has not started {plural(len(queued), 'node')} yet: {reason}"
        if reason not in ("", "None") and lacks != self._lacks and self._read_s >= self._lacks_s + LACKS_EVERY_S:
            self._lacks, self._lacks_s = lacks, self._read_s
            self.entry.lacks(lacks)

    def _not_begun(self, elements: list[Element]) -> list[Element]:
        """Those that wait for a node, else those that have one and do not begin, if none is about to."""
        queued = [element for element in elements if element.phase is ElementPhase.QUEUED]
        if queued or self.scheduler.expects(self.entry.job.id, self._read_s):
            return queued
        return [element for element in elements if element.waits]

    def _report_no_nodes(self, elements: list[Element]) -> None:
        """Why a job that has begun has no node any more, each reason once."""
        if not elements or any(element.phase is not ElementPhase.QUEUED for element in elements):
            self._empty_since_s, self._empty_reasons = None, set()
            return
        self._empty_since_s = self._read_s if self._empty_since_s is None else self._empty_since_s
        reason, known = elements[0].reason, {"None", *self._empty_reasons}
        lasts = self._read_s >= self._empty_since_s + NO_NODES_S
        if self.ledger.presence.begun and lasts and reason not in known:
            self._empty_reasons.add(reason)
            begins = f"no node is left, and {self._title} has not started any of the {len(elements)} asked for"
            self.entry.warn(f"{begins}: {reason}")

    def report_problem(self, problem: str) -> None:
        """Why the job gets no nodes, or they no coordinator: the reason for which it waits, or a warning if it runs."""
        if not self.entry.started:
            self.entry.say(problem)
        elif problem != self.entry.said:
            self.entry.said = problem
            self.entry.warn(f"{problem}; the job goes on with the nodes it has")


def _deadline_s(spec: JobSpec) -> float:
    """How long a node that runs may take to join. A replica joins before it has loaded its model."""
    options = spec.backend_options
    return parse_duration(options[STARTUP_DEADLINE]) if STARTUP_DEADLINE in options else DEADLINE_S


def _value(step: AllocationStep) -> dict[str, object]:
    given = {"give_back": step.give_back, "give_up": step.give_up, "send_away": step.send_away, "avoid": step.avoid}
    return {"submit": dict(step.submit)} | {name: list(names) for name, names in given.items() if names}
