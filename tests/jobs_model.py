"""Jobs that share a cluster, in simulated time: the real policy and the real controller of every job, modelled nodes.

What is modelled are the supervisor's effects (an agent begins a while after it was asked for) and what agents and
workers say: they register, run a cell, open sessions, commit steps, leave, are lost and end. All decisions, who gets
which node and who of a job leaves, are the product's own.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.events import Command, Event, decode_event
from jupyter_hyperpod.core.events import encode as encode_event
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.core.views import apply, new_job_view
from jupyter_hyperpod.policy.recovery import MemberState
from jupyter_hyperpod.policy.scaling import ScalableNode
from jupyter_hyperpod.runtime.context import Context
from jupyter_hyperpod.runtime.coordinator import (
    checkpoints,
    controller,
    draining,
    failures,
    generations,
    job_state,
    scripts,
    stragglers,
)
from jupyter_hyperpod.runtime.coordinator.commands import obey
from jupyter_hyperpod.runtime.coordinator.controller import Controller
from jupyter_hyperpod.runtime.coordinator.job_state import so_far
from jupyter_hyperpod.runtime.coordinator.phase import Phase
from jupyter_hyperpod.runtime.payload_by_rank import PackedReader, is_packed
from jupyter_hyperpod.runtime.protocol import facts, orders
from jupyter_hyperpod.runtime.protocol.codec import Message, decode, encode
from jupyter_hyperpod.storage.store import JobStore
from jupyter_hyperpod.supervisor.reconcile import Begin, Fail, JobFacts, Rescale, Wait, reconcile

BEGAN_S = 1000.0
TICK_S = 0.1
RECONCILE_EVERY_S = 0.25
REST_S = 0.5
NOTHING: dict[str, Any] = {}


class Clock:
    """Stands for the module `time` where the controller looks at it."""

    def __init__(self) -> None:
        self.now_s = BEGAN_S

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return 0.0

    def time(self) -> float:
        return self.now_s


@contextmanager
def simulated_time() -> Iterator[Clock]:
    """Every module of a controller sees this clock."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (stragglers, controller, draining, checkpoints, job_state, failures, scripts, generations):
            patch.setattr(module, "time", clock)
        patch.setattr(generations, "_free_port", lambda: 1)
        yield clock


@dataclass(frozen=True)
class Cell:
    """What a job's program does; times in seconds. ``sessions`` 0: a script that asks for elastic events.

    ``before_s`` passes before each session, ``after_s`` on rank 0 after the last one.
    """

    sessions: int
    steps: int
    step_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True)
class Plan:
    """One job of a schedule.

    ``kills``: when, after its submission, one of its workers is killed; ``heads``: when its coordinator is.
    """

    at_s: float
    spec: JobSpec
    cell: Cell
    kills: tuple[float, ...] = ()
    heads: tuple[float, ...] = ()


class Journal:
    """Takes the place of the reporter: events are folded into the job's view as they come."""

    def __init__(self, job_id: str, clock: Clock) -> None:
        self.view = new_job_view(job_id)
        self.events: list[Event] = []
        self.writer = 0
        self._clock = clock

    def write(self, kind: str, data: Any, *, durable: bool = False) -> None:
        event = Event(f"coordinator.{self.writer}", len(self.events) + 1, self._clock.now_s, kind, data)
        self.events.append(decode_event(encode_event(event)))
        apply(self.view, self.events[-1])


class Line:
    """A connection between an agent and the controller; what the controller says arrives at the next tick."""

    def __init__(self) -> None:
        self.closed = False
        self.said: list[dict[str, Any]] = []
        self.position = self.confirmed = self.arrived = 0

    def send(self, message: dict[str, Any]) -> None:
        if not self.closed:
            self.said.append(message)

    def send_encoded(self, payload: bytes) -> None:
        self.send(json.loads(PackedReader().read(payload, 1 << 20) if is_packed(payload) else payload))


@dataclass
class Agent:
    """An agent with its worker on one node."""

    job: Job
    node: str
    spare: bool
    line: Line = field(default_factory=Line)
    member: str = ""
    rank: int | None = None
    generation: int = 0
    step: int | None = None
    trains: bool = False
    sessions: int = 0
    leave_after: int | None = None
    hold: int | None = None
    ended: bool = False
    partial: bool = False  # its state is a snapshot
    phase: str = "idle"
    calls: int = 0
    at: tuple[int, bool] | None = None
    over: bool = False
    life: int = 0
    status: facts.WorkerStatus = facts.WorkerStatus()

    def begin(self) -> None:
        """Fork a worker, which says hello when it is ready."""
        self.life += 1
        self.member = f"{self.node}.{self.job.world.serial():x}.{self.life}"
        self.rank, self.step, self.trains, self.sessions, self.leave_after, self.hold = None, None, False, 0, None, None
        self.ended, self.phase, self.calls, self.at, self.generation = False, "idle", 0, None, 0
        self.partial = False
        self.status = facts.WorkerStatus()
        self.later(self.job.world.delay(1.0), self.register)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it, unless this worker is gone by then."""
        life = self.life
        self.job.world.at(delay_s, lambda: act() if self.life == life and not self.over else None)

    def tell(self, fact: Message) -> None:
        if isinstance(fact, facts.SessionOpened | facts.SessionFinished | facts.CellDone):
            self.status = replace(self.status, **{fact.wire: fact})  # type: ignore[arg-type]
        if isinstance(fact, facts.WorkerExited):
            self.status = replace(self.status, exited=fact.code, ago_s=fact.ago_s)
        if not self.over:
            self.say(fact)

    def say(self, fact: Message) -> None:
        if self.job.controller is not None:
            said = json.loads(json.dumps(encode(fact) | {"member": self.member}))
            self.job.controller.hear(self.line, said)  # type: ignore[arg-type]

    def register(self) -> None:
        if self.job.controller is None:
            self.later(0.05, self.register)
            return
        self.phase = "idle"
        self.tell(facts.Register(self.node, 1, "h", 1, None, self.spare, facts.WorkerStatus()))
        self.job.registered.add(self.member)

    def return_to_head(self) -> None:
        """Register with another coordinator, and say all that the one before was told."""
        self.line = Line()
        if self.job.controller is None:
            self.later(0.05, self.return_to_head)
        elif self.member in self.job.registered:
            self.tell(facts.Register(self.node, 1, "h", 1, self.rank, self.spare, self.status))

    def hear(self, message: dict[str, Any]) -> None:
        order = decode(message)
        assert order is not None
        getattr(self, f"on_{order.wire}", lambda order: None)(order)

    def on_run(self, order: orders.RunCell) -> None:
        self.rank, self.phase, self.status = order.rank, "user", replace(self.status, run=order)
        if self.job.cell.sessions:
            self.later(self.job.cell.before_s, self.open)

    def open(self) -> None:
        self.sessions += 1
        self.step, self.phase = None, "user"
        self.status = replace(self.status, finished=None)
        self.tell(facts.SessionOpened(self.job.cell.steps, 8, 1, 8, 1, 8, None, self.sessions))

    def on_form(self, order: orders.FormGeneration) -> None:
        self.generation, self.rank, self.trains = order.generation, order.rank, False
        self.leave_after = self.hold = None
        self.later(self.job.world.delay(0.2), self.report)

    def report(self) -> None:
        self.tell(
            facts.StateReported(
                self.generation, MemberState(self.step, digest="same", waiting=self.partial, partial=self.partial)
            )
        )

    def on_go(self, order: orders.FollowPlan) -> None:
        if order.generation == self.generation:
            self.step, self.trains, self.phase, self.partial = order.plan.step, True, "compute", False
            self.job.next_step_s = self.job.world.clock.now_s + self.job.cell.step_s
            if order.plan.rank in order.plan.fresh:
                self.tell(facts.StateReceived(self.generation, "has the state"))

    def on_leave(self, order: orders.LeaveAfter) -> None:
        if order.generation == self.generation:
            self.leave_after = order.after

    def on_hold(self, order: orders.MeetAfter) -> None:
        if order.generation == self.generation:
            self.hold = order.step

    def on_offer(self, order: orders.OfferState) -> None:
        step = -1 if self.step is None else self.step
        offered = facts.StateOffered(order.generation, step, ("t",), ("",))
        self.later(0.05, lambda: self.tell(offered))

    def on_snapshot(self, order: orders.TakeSnapshot) -> None:
        def load() -> None:
            self.step, self.partial = order.step, True
            self.tell(facts.SnapshotLoaded(order.step))

        self.later(self.job.world.delay(0.3), load)

    def on_close(self, order: orders.CloseSession) -> None:
        self.trains, self.phase = False, "user"
        self.status = replace(self.status, session=None)
        if self.sessions < self.job.cell.sessions:
            self.later(self.job.cell.before_s, self.open)
        else:
            self.later(self.job.cell.after_s if self.rank == 0 else 0.05, lambda: self.end(False))

    def end(self, elastic: bool) -> None:
        if self.ended:
            return
        self.phase, self.ended = "done", True
        self.tell(facts.CellDone(elastic))
        self.later(0.05, lambda: self.tell(facts.WorkerExited(0, 0.0)))

    def on_elastic_call(self, order: orders.CallElasticEvent) -> None:
        at, final = order.at, order.final
        ok = bool(at) and self.calls < at
        self.at = (at, final) if at and (ok or final) else None
        self.status = replace(self.status, elastic=order) if at else self.status
        self.tell(facts.ElasticAnswer(at, ok, self.calls))

    def on_signal(self, order: orders.SendSignal) -> None:
        if order.member == self.member:
            self.kill(order.number)

    def kill(self, number: int = 9) -> None:
        """The worker dies of a signal, and its agent says so."""
        self.life, self.trains = self.life + 1, False
        self.status = replace(self.status, exited=-number, ago_s=0.0)
        self.say(facts.WorkerExited(-number, 0.0))

    def on_restart(self, order: orders.Restart) -> None:
        if not self.ended:
            self.life += 1
            self.tell(facts.WorkerExited(-9, 0.0))
        self.begin()

    def on_release(self, order: orders.Release) -> None:
        self.over = True
        self.job.world.at(self.job.world.delay(0.3), lambda: self.job.world.leave(self))

    def tick(self) -> None:
        """A script asks whether it should stop; a beat goes out."""
        if self.phase == "user" and self.rank is not None and not self.job.cell.sessions and not self.ended:
            waits = self.at is not None and not self.at[1] and self.calls + 1 >= self.at[0]
            self.calls += not waits
            if self.at is not None and self.at[1] and self.calls >= self.at[0]:
                self.end(True)
            elif self.job.world.clock.now_s >= self.job.script_until_s:
                self.end(False)
        if self.member in self.job.registered:
            counter = round(self.job.world.clock.now_s / TICK_S)
            self.tell(facts.Beat(counter, self.step or 0, self.phase, self.calls, False, None, (0, 0.0)))


class Job:
    """One job: what its supervisor knows of it, its controller once its head is up, and its agents."""

    def __init__(self, world: World, index: int, plan: Plan) -> None:
        self.world, self.plan, self.spec, self.cell = world, plan, plan.spec, plan.cell
        self.id = f"{plan.spec.name}-{index}"
        self.order = world.clock.now_s
        self.target = self.commanded = plan.spec.nodes
        self.started = False
        self.rest_until_s = 0.0
        self.controller: Controller | None = None
        self.journal = Journal(self.id, world.clock)
        self.agents: dict[str, Agent] = {}
        self.commands: list[Command] = []
        self.registered: set[str] = set()
        self.next_step_s = 0.0
        self.script_until_s = world.clock.now_s + plan.cell.steps * plan.cell.step_s
        self.state = "pending"
        self.reason = ""

    def facts(self) -> JobFacts:
        nodes, resting = tuple(self.agents), self.world.clock.now_s < self.rest_until_s
        return JobFacts(
            self.id, self.spec, self.order, self.target, self.commanded, self.started, self.started, nodes, resting
        )

    def head(self) -> None:
        """The coordinator's process is up."""
        context = Context(JobStore(Path("/nowhere")), "head", Path("/nowhere"), self.spec, False, "0")
        view = copy.deepcopy(self.journal.view)
        self.controller = Controller(context, view, self.journal, *so_far(self.journal.events))  # type: ignore[arg-type]
        self.controller.begin()

    def lose_head(self) -> None:
        """The coordinator's process is killed; the next one begins with the journal, and the agents find it."""
        if self.controller is None or self.controller.state.ended:
            return
        self.controller = None
        for agent in self.agents.values():
            agent.line.closed = True
        self.world.at(self.world.delay(1.0), self.next_head)

    def next_head(self) -> None:
        self.journal.writer += 1
        self.head()
        for agent in self.agents.values():
            agent.later(self.world.delay(0.5), agent.return_to_head)

    def command(self, target: int) -> None:
        """What the supervisor tells the job; the controller reads it when it looks."""
        self.commanded = target
        self.commands.append(
            Command(
                "supervisor", len(self.commands) + 1, 0.0, "scale", {"target": target, "lends": target < self.target}
            )
        )

    def tick(self, now_s: float) -> None:
        mind = self.controller
        if mind is None:
            return
        while self.commands:
            obey(mind, self.commands.pop(0))
        for agent in list(self.agents.values()):
            said, agent.line.said = agent.line.said, []
            for message in said:
                agent.hear(message)
            agent.tick()
        self.train(now_s)
        mind.tick(now_s)
        if mind.state.ended:
            assert mind.final is not None
            mind.say_final_state()
            self.state, self.reason = mind.final
            for agent in [agent for agent in self.agents.values() if not agent.over]:  # the others leave already
                agent.over = True
                self.world.at(self.world.delay(0.3), lambda agent=agent: self.world.leave(agent))  # type: ignore[misc]

    def train(self, now_s: float) -> None:
        """All members of the generation commit a step together, unless one has left or all have met."""
        mind = self.controller
        assert mind is not None
        names = {member.member for member in mind.state.roster.generation()}
        members = [agent for agent in self.agents.values() if agent.member in names]
        if mind.state.phase is Phase.ADOPTING or not members or len(members) < len(names) or now_s < self.next_step_s:
            return
        if any(not a.trains or a.generation != mind.state.generation for a in members):
            return
        step = members[0].step
        assert step is not None and all(agent.step == step for agent in members), "members train different steps"
        if step >= self.cell.steps:
            for agent in members:
                agent.trains = False
                agent.tell(facts.SessionFinished(agent.generation, step, "same"))
            return
        if any(agent.hold is not None and step >= agent.hold for agent in members):
            return
        leavers = [agent for agent in members if agent.leave_after is not None and step >= agent.leave_after]
        for agent in leavers:
            agent.leave_after, agent.trains = None, False
            agent.tell(facts.MemberLeft(agent.generation, step))
        if leavers:
            return
        for agent in members:
            agent.step = step + 1
        self.next_step_s = now_s + self.cell.step_s
        first = min(members, key=lambda agent: agent.rank or 0)
        first.tell(facts.StepCommitted(step + 1, first.generation, self.cell.step_s))


class World:
    """A cluster of ``nodes`` and ``spares`` and its schedule of jobs; `run` plays it to the end."""

    def __init__(self, clock: Clock, nodes: int, spares: int, plans: list[Plan], seed: int) -> None:
        self.clock = clock
        self.names = {f"node-{i + 1}": i >= nodes for i in range(nodes + spares)}
        self.capacity = nodes
        self.random = random.Random(seed)
        self.plans = sorted(plans, key=lambda plan: plan.at_s)
        self.jobs: list[Job] = []
        self.owner: dict[str, Agent] = {}
        self.begins: dict[str, str] = {}
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._look_s = 0.0
        self.actions: list[Any] = []
        self.story: list[str] = []

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def delay(self, most_s: float) -> float:
        return self.random.uniform(0.01, most_s)

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        self.due.append((self.clock.now_s + delay_s, self.serial(), act))

    def note(self, text: str) -> None:
        self.story.append(f"{self.clock.now_s - BEGAN_S:7.2f} {text}")

    def told(self, problem: str) -> str:
        """The story of a schedule that went wrong."""
        texts = [
            f"{job.id}: {event.time_s - BEGAN_S:7.2f} {event.kind} {event.data}"
            for job in self.jobs
            for event in job.journal.events[-12:]
        ]
        return "\n".join([problem, *self.story, *texts])

    @property
    def unfinished(self) -> list[Job]:
        return [job for job in self.jobs if job.state in ("pending", "running")]

    def leave(self, agent: Agent) -> None:
        """An agent's process has ended: its connection ends with it, and its node is free."""
        agent.line.closed = True
        del self.owner[agent.node]
        del agent.job.agents[agent.node]
        agent.job.rest_until_s = self.clock.now_s + REST_S
        if agent.job.controller is not None and agent.job.state in ("pending", "running"):
            agent.job.controller.hung_up(agent.line)  # type: ignore[arg-type]

    def run(self, longest_s: float, check: Callable[[World], None]) -> None:
        """Play the schedule until every job has ended; ``check`` is called after each look of the supervisor."""
        began_s = self.clock.now_s
        while self.plans or self.unfinished or self.owner:
            assert self.clock.now_s - began_s < longest_s, self.told("the jobs did not end")
            self.tick(check)

    def tick(self, check: Callable[[World], None] = lambda world: None) -> None:
        """Play the next moment."""
        now_s = self.clock.now_s
        while self.plans and self.plans[0].at_s <= now_s - BEGAN_S:
            plan = self.plans.pop(0)
            self.jobs.append(Job(self, len(self.jobs), plan))
            self.note(f"{self.jobs[-1].id} is submitted: {plan.spec.nodes} nodes, {plan.spec.elastic}")
            for kill_s in plan.kills:
                self.at(kill_s, lambda job=self.jobs[-1]: self.kill(job))  # type: ignore[misc]
            for head_s in plan.heads:
                self.at(head_s, self.jobs[-1].lose_head)
            self._look_s = 0.0
        ripe = sorted(one for one in self.due if one[0] <= now_s)
        self.due = [one for one in self.due if one[0] > now_s]
        for _, _, act in ripe:
            act()
        for job in self.unfinished:
            job.tick(now_s)
        if now_s >= self._look_s:
            self._look_s = now_s + RECONCILE_EVERY_S
            self.reconcile()
            check(self)
        self.clock.now_s = now_s + TICK_S

    def kill(self, job: Job) -> None:
        runs = [a for a in job.agents.values() if a.rank is not None and not a.ended and not a.over]
        alive = [agent for agent in runs if agent.trains or not job.cell.sessions]
        if alive:
            victim = self.random.choice(alive)
            self.note(f"{victim.member} of {job.id} is killed")
            victim.kill()

    def reconcile(self) -> None:
        """Look and act as the supervisor does."""
        jobs = {job.id: job for job in self.unfinished}
        machines = [ScalableNode(name, spare, name not in self.owner) for name, spare in self.names.items()]
        self.actions = reconcile([job.facts() for job in jobs.values()], machines)
        for action in self.actions:
            job = jobs[action.job_id]
            if isinstance(action, Fail):
                job.state, job.reason = "failed", action.reason
            elif isinstance(action, Wait):
                if action.reason != job.reason:
                    self.note(f"{job.id} {action.reason}")
                job.reason = action.reason
            elif isinstance(action, Rescale):
                self.note(f"{job.id} {action.reason}")
                job.command(action.target)
            else:
                self.begin(job, action)

    def begin(self, job: Job, action: Begin) -> None:
        self.note(f"{job.id} {action.reason}")
        if not job.started:
            job.started = True
            self.at(self.delay(0.5), job.head)
        for node in action.nodes:
            assert node not in self.owner, f"{node} is given twice"
            agent = self.owner[node] = job.agents[node] = Agent(job, node, self.names[node])
            agent.begin()
