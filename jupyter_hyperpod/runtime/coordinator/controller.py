"""The controller: passes each message to the part that it concerns, and carries out the actions that the part yields.

Each part owns its data and yields actions; `_do` is the one place that carries them out. A kill comes in through
`failures`; `generations` decides who continues, and how. Every decision is journaled with its sentence. `main` has the
sockets and waits on them; the controller reads the clock, but never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...core.errors import ProtocolError
from ...core.events import TERMINAL_STATES
from ...core.views import View
from ...storage.journal_writer import JournalWriter
from ..connection import Channel
from ..context import Context
from ..payload_by_rank import PayloadByRank
from ..protocol import facts, orders
from ..protocol.codec import decode, encode
from ..protocol.dispatch import handlers, handles
from .actions import (
    Action,
    Actions,
    BeginGeneration,
    BeginSession,
    Decide,
    End,
    Enter,
    JournalGeneration,
    ReleaseMember,
    Remove,
    SayState,
    Send,
    SendByRank,
    WriteEvent,
)
from .adoption import Adoption
from .checkpoints import CheckpointTracker
from .draining import Draining
from .failures import Failures
from .generations import Generations
from .incidents import Incidents
from .job_state import JobState
from .joining import Joining
from .node_samples import NodeSamples
from .phase import STARTS, Phase, step
from .roster import Member
from .scripts import Scripts
from .session_lifecycle import SessionLifecycle
from .stragglers import Stragglers

AWAY_S = 0.25
RESTS = 9.0  # times as long as it took to look at all members, before the next look


class Controller:
    """Decides for the members of one job."""

    def __init__(
        self,
        context: Context,
        view: View,
        reporter: JournalWriter,
        opened: int = 0,
        closed: int = 0,
        restarts: int = 0,
        batches: Mapping[str, int] | None = None,
        require_newest: Callable[[], None] = lambda: None,
    ) -> None:
        """``opened``, ``closed``: sessions so far; ``restarts``: how often a script was started again.

        ``batches``: the global batches of the session so far, where they may change. ``require_newest`` is called
        before a generation begins, before a member whose connection has ended counts as lost, and before the job ends;
        it raises where another coordinator decides that.
        """
        self.reporter = reporter
        self._require_newest = require_newest
        self._told_all: dict[str, PayloadByRank] = {}  # the newest message of each kind to all members
        self.final: tuple[str, str] | None = None
        self._farewell = ""
        self.said_state: str = view["state"]
        self._said_phase: str = view["phase"]
        self._ticked_s = time.monotonic()
        self._rest_until_s = 0.0
        incidents = Incidents(reporter.write, view["incidents"])
        self.state = JobState(context.spec, view, incidents, opened, closed, batches)
        self.state.store = context.job
        self.joining = Joining(self.state)
        self.checkpoints = CheckpointTracker(self.state, view)
        self.scripts = Scripts(self.state, restarts)
        self.lifecycle = SessionLifecycle(self.state, self.scripts)
        self.draining = Draining(self.state, self.joining)
        self.failures = Failures(self.state, self.joining, self.checkpoints, self.lifecycle)
        self.stragglers = Stragglers(self.state, self.draining)
        self.samples = NodeSamples()
        self.generations = Generations(
            self.state, self.joining, self.draining, self.failures, self.checkpoints, self.stragglers, self.scripts
        )
        self.adoption = Adoption(self.state, self.generations, self.scripts, self.lifecycle)
        parts = (self.joining, self.checkpoints, self.scripts, self.lifecycle, self.draining, self.failures)
        self._handlers = handlers(self, *parts, self.generations, self.samples)

    # ---- from outside -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """This coordinator begins: journal where."""
        self.state.incidents.succeeded()
        self._say_phase(STARTS[self.state.phase])

    def hear(self, channel: Channel, found: Mapping[str, Any]) -> None:
        """Pass a message to the part that handles it. Unknown messages and those of fenced members are ignored.

        Raises ProtocolError for a message that cannot be read.
        """
        if self.state.ended:
            return
        fact, name = decode(found), found.get("member")
        if fact is None:
            return
        if not isinstance(name, str):
            raise ProtocolError(f"message {fact.wire!r} names no member")
        if isinstance(fact, facts.Register):
            self._register(channel, name, fact)
            return
        member, handler = self.state.roster.members.get(name), self._handlers.get(type(fact))
        if handler is None or member is None or member.channel is not channel:
            return
        member.signs.heard_s = time.monotonic()
        if getattr(fact, "generation", self.state.generation) != self.state.generation:
            if not isinstance(fact, facts.StepCommitted):  # a step stays committed; all else is said again
                return
        actions = handler(member, fact)
        if actions is not None:
            self.apply(actions)

    def hung_up(self, channel: Channel) -> None:
        """An agent's connection has ended."""
        member = self.state.roster.by_channel(channel)
        if member is not None and not self.state.ended:
            self._require_newest()  # agents that have gone to another coordinator are not lost
            self.apply(self.failures.hung_up(member))

    def tick(self, now: float) -> None:
        """Act on the time that has passed: silent members, deadlines, members that wait to join or leave."""
        away_s, self._ticked_s = now - self._ticked_s, now
        if self.state.ended:
            return
        if self.state.phase is Phase.GATHERING:
            self.apply(self.generations.start_if_ready())
        self.apply(self.adoption.tick(now))
        if away_s > AWAY_S:
            self.failures.excuse(away_s, now)
        elif now >= self._rest_until_s:
            self._watch_members(now)

    def _watch_members(self, now: float) -> None:
        """Look at every member, which takes longer the more there are: at most a tenth of the time goes into that."""
        began_s = time.thread_time()  # a busy machine must not make the looks rare
        self.apply(self.failures.tick(now))
        if self.checkpoints.coming and self.state.phase is Phase.WAITING:
            self.apply(self.generations.admit())
        self.apply(self.draining.tick(now))
        self.apply(self.scripts.tick(now))
        self.apply(self.generations.tick(now))
        self._rest_until_s = now + RESTS * (time.thread_time() - began_s)

    def end(self, state: str, reason: str) -> None:
        """The job ends; the coordinator takes leave of the agents and journals this state."""
        self._do(End(state, reason))

    def say_final_state(self) -> None:
        """Journal how the job ended: the last event of all."""
        if self.final is not None:
            self._say_phase(self._farewell)
            self._do(SayState(*self.final))

    # ---- what members say; the parts handle the other facts -------------------------------------------------

    @handles(facts.Register)
    def _register(self, channel: Channel, name: str, register: facts.Register) -> None:
        status, expected = register.status, self.state.expected
        known, adopted = self.state.roster.members.get(name), expected.get(name)
        if register.rank is not None and known is None and adopted is None:
            reason = f"{name} belongs to an older generation: its node begins again with a new worker"
            self._do(Decide("membership", f"fence {name}", reason))
            channel.send(encode(orders.Restart()))
            return
        member = self.state.roster.add(name, register, channel, time.monotonic())
        if known is None:
            joined = {"member": name, "node": register.node, "pid": register.pid, "host": register.host}
            self._do(WriteEvent("member.joined", joined))
        if adopted is not None:
            self.state.roster.place(member, adopted["rank"])
        if status.error is not None:
            self.apply(self.lifecycle.failed(member, status.error))
        if status.exited is not None and not self.state.ended:
            exited = facts.WorkerExited(status.exited, status.ago_s or 0.0)
            self.apply(self.failures.exited(member, exited))
        expected.pop(name, None)
        if self.state.ended:
            return
        if self.state.phase is Phase.GATHERING:
            if len(self.state.roster.members) >= self.state.target:  # else the next tick asks
                self.apply(self.generations.start_if_ready())
        elif adopted is not None and not expected:
            self.apply(self.adoption.all_here("a new coordinator took over: all members registered again"))
        elif known is not None and known.rank is not None and not expected:
            self.apply(self.adoption.all_here(f"{name} registered again"))
        if status.leaving is not None and name in self.state.roster.members:
            self.apply(self.draining.preempted(member, status.leaving))
        self.apply(self.generations.welcome_newcomers())
        if self.state.phase is Phase.WAITING:  # a newcomer may have become ready while there was no coordinator
            self.apply(self.generations.admit())

    @handles(facts.Beat)
    def _beat(self, member: Member, beat: facts.Beat) -> None:
        member.beat(beat, time.monotonic())
        if beat.held_s is not None:
            self._do(Send(member, orders.ResumeWorker(member.member, beat.held_s, beat.lease_s)))

    @handles(facts.SessionOpened)
    def _opened(self, member: Member, session: facts.SessionOpened) -> Actions:
        member.session, member.finished = session, None
        if member.rank is not None:
            yield from self.lifecycle.open_session()
            return
        yield WriteEvent("member.ready", {"member": member.member, "node": member.node})
        if self.state.generation > 0:
            yield JournalGeneration(f"{member.node} stands by")
        yield from self.generations.admit()

    @handles(facts.StateReceived)
    def _received(self, member: Member, received: facts.StateReceived) -> None:
        self.state.incidents.rejoined(member.member, received.text)

    @handles(facts.StepCommitted)
    def _committed(self, member: Member, committed: facts.StepCommitted) -> Actions:
        state = self.state
        state.step, state.step_time_s = committed.step, committed.step_time_s
        state.session_step = max(state.session_step, committed.step)
        if committed.loss:
            yield from state.repeated.committed(state.session_index, committed.step, committed.loss)
        if committed.generation != state.generation:
            return
        state.sound_s = time.monotonic()
        if not state.committed_in_generation:
            state.committed_in_generation = True
            self.failures.settled()
            self.state.incidents.resumed(state.step, len(self.state.roster.generation()))
            yield SayState("running", f"step {state.step} committed")
            yield from self.generations.welcome_newcomers()
            yield from self.generations.admit()
        if self.joining.hold_step is not None:
            if state.step >= self.joining.hold_step:
                ready = tuple(m for m in state.ready_newcomers() if m.snapshot is not None)
                yield BeginGeneration("newcomers hold the state", ready)
        elif self.state.phase is Phase.TRAINING:
            yield from self.stragglers.committed(state.step, len(state.ready_newcomers()))

    @handles(facts.FaultStruck)
    def _struck(self, member: Member, struck: facts.FaultStruck) -> None:
        """A fault that the cell asked for strikes the member now."""
        member.signs.struck_s = time.monotonic()

    # ---- what people and supervisors command ----------------------------------------------------------------

    def scale(self, target: int, lends: bool, reason: str) -> None:
        """Set the number of members that the job should have; ``lends``: other jobs have nodes that its owner wants."""
        self.draining.lends, self.state.target = lends, target
        if len(self.state.roster.generation()) > target and not self.state.trains:
            reason += "; ranks outside hp.Session leave when a session opens, when they end, or at an elastic event"
        self._do(Decide("membership", target, reason))
        self._do(JournalGeneration(reason))
        self.apply(self.generations.admit())

    # ---- what is done -----------------------------------------------------------------------------------------

    def apply(self, actions: Iterable[Action]) -> None:
        """Do what a part wants, one after the other."""
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Send(member, order):
                member.tell(order)
            case SendByRank(members, order):
                self._told_all[order.wire] = payload = PayloadByRank(encode(order), self._told_all.get(order.wire))
                for member in members:
                    held = member.channel.held if member.patches else None
                    member.channel.send_encoded(payload.of(member.rank, packed=member.unpacks, held=held))
            case WriteEvent(kind, data, durable):
                self.reporter.write(kind, data, durable=durable)
            case Decide(policy, value, reason):
                self.reporter.write("decision.made", {"policy": policy, "value": value, "reason": reason})
            case JournalGeneration(reason):
                self.reporter.write("generation.formed", self.generations.record(reason))
            case SayState(state, reason):
                self._say_state(state, reason)
            case Enter(phase):
                self._enter(phase)
            case BeginGeneration(reason, newcomers):
                self._require_newest()
                self.apply(self.generations.regroup(reason, newcomers))
            case BeginSession():
                self.apply(self.generations.begin_session())
            case ReleaseMember(member, begins_again):
                member.tell(orders.Restart() if begins_again else orders.Release())
                self._do(Remove(member))
            case Remove(member):
                self.state.roster.remove(member)
                self.apply(self.joining.gone(member))
            case End(state, reason):
                self._end(state, reason)

    def _enter(self, phase: Phase) -> None:
        """Go to another phase and journal it; PhaseError where the table has no such transition."""
        if self.state.ended:
            return  # what was decided in the same pass as the end comes too late
        sentence = step(self.state.phase, phase).sentence
        self.state.phase = phase
        self.state.expected.clear()
        if phase is Phase.GATHERING:
            self.state.gathering_since_s = time.monotonic()
        self._say_phase(sentence)

    def _end(self, state: str, reason: str) -> None:
        if not self.state.ended:
            self._require_newest()
            self._farewell = step(self.state.phase, Phase.ENDED).sentence
            self.state.phase = Phase.ENDED
            self.final = (state, reason)

    def _say_phase(self, reason: str) -> None:
        """Journal the phase where it is a new one."""
        if self.state.phase.value != self._said_phase:
            self._said_phase = self.state.phase.value
            self.reporter.write("phase.changed", {"phase": self.state.phase.value, "reason": reason})

    def _say_state(self, state: str, reason: str) -> None:
        """Journal the state of the job where it is a new one."""
        if state != self.said_state:
            self.said_state = state
            self.reporter.write("job.state", {"state": state, "reason": reason}, durable=state in TERMINAL_STATES)
