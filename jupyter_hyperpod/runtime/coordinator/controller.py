"""The controller: passes each message to the part that it concerns, and carries out the actions that the part yields.

Each part owns its data and yields actions; `_do` is the one place that carries them out. A kill comes in through
`failures`; `generations` decides who continues, and how. Every decision is journaled with its sentence. `main` has the
sockets and waits on them; the controller reads the clock, but never waits.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TypeVar

from ...core.events import TERMINAL_STATES
from ...core.views import View
from ...storage.journal_writer import JournalWriter
from ..connection import Channel, Message
from ..context import Context
from ..protocol import facts, orders
from ..protocol.codec import encode
from .actions import (
    Action,
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
from .phase import STARTS, Phase, step
from .roster import Member, Roster
from .scripts import Scripts
from .session_lifecycle import SessionLifecycle
from .stragglers import Stragglers

AWAY_S = 0.25

T = TypeVar("T")


class Controller:
    """Decides for the members of one job."""

    def __init__(
        self, context: Context, view: View, reporter: JournalWriter, opened: int = 0, closed: int = 0, restarts: int = 0
    ) -> None:
        """``opened``, ``closed``: sessions so far; ``restarts``: how often a script was started again."""
        self.reporter = reporter
        self.final: tuple[str, str] | None = None
        self._farewell = ""
        self.said_state: str = view["state"]
        self._said_phase: str = view["phase"]
        self._ticked_s = time.monotonic()
        self.incidents = Incidents(reporter.write, view["incidents"])
        self.state = JobState(context.spec, view, self.incidents, opened, closed)
        self.joining = Joining(self.state)
        self.checkpoints = CheckpointTracker(self.state, view)
        self.scripts = Scripts(self.state, restarts)
        self.lifecycle = SessionLifecycle(self.state, self.scripts)
        self.draining = Draining(self.state, self.joining)
        self.failures = Failures(self.state, self.joining, self.checkpoints, self.lifecycle)
        self.stragglers = Stragglers(self.state, self.draining)
        self.generations = Generations(
            self.state, self.joining, self.draining, self.failures, self.checkpoints, self.stragglers, self.scripts
        )
        self.adoption = Adoption(self.state, self.generations, self.scripts, self.lifecycle)

    @property
    def phase(self) -> Phase:
        """What the members are at."""
        return self.state.phase

    @property
    def ended(self) -> bool:
        """The job is over; only its farewell is left."""
        return self.state.ended

    @property
    def roster(self) -> Roster:
        """All members that are known."""
        return self.state.roster

    # ---- from outside -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """This coordinator begins: journal where."""
        self.incidents.succeeded()
        self._say_phase(STARTS[self.phase])

    def hear(self, channel: Channel, message: Message) -> None:
        """Handle a message from an agent or its worker. Unknown messages and those of fenced members are ignored."""
        if self.ended:
            return
        if message["type"] == "register":
            self._register(channel, message)
            return
        member = self.roster.members.get(message["member"])
        handler = getattr(self, f"_on_{message['type']}", None)
        if handler is not None and member is not None and member.channel is channel:
            member.signs.heard_s = time.monotonic()
            handler(member, message)

    def hung_up(self, channel: Channel) -> None:
        """An agent's connection has ended."""
        member = self.roster.by_channel(channel)
        if member is not None and not self.ended:
            self._apply(self.failures.hung_up(member))

    def tick(self, now: float) -> None:
        """Act on the time that has passed: silent members, deadlines, members that wait to join or leave."""
        away_s, self._ticked_s = now - self._ticked_s, now
        if self.ended:
            return
        if self.phase is Phase.GATHERING:
            self._apply(self.generations.start_if_ready())
        self._apply(self.adoption.tick(now))
        if away_s > AWAY_S:
            self.failures.excuse(away_s, now)
        else:
            self._apply(self.failures.tick(now))
        if self.checkpoints.coming and self.phase is Phase.WAITING:
            self._apply(self.generations.admit())
        self._apply(self.draining.tick(now))
        self._apply(self.scripts.tick(now))
        self._apply(self.generations.tick(now))

    def end(self, state: str, reason: str) -> None:
        """The job ends; the coordinator takes leave of the agents and journals this state."""
        self._do(End(state, reason))

    def say_final_state(self) -> None:
        """Journal how the job ended: the last event of all."""
        if self.final is not None:
            self._say_phase(self._farewell)
            self._do(SayState(*self.final))

    # ---- what members say ---------------------------------------------------------------------------------

    def _register(self, channel: Channel, message: Message) -> None:
        name, status, expected = message["member"], message["status"], self.state.expected
        known, adopted = self.roster.members.get(name), expected.get(name)
        if message["rank"] is not None and known is None and adopted is None:
            reason = f"{name} belongs to an older generation: its node begins again with a new worker"
            self._do(Decide("membership", f"fence {name}", reason))
            channel.send(encode(orders.Restart()))
            return
        member = self.roster.add(message, channel, time.monotonic())
        if known is None:
            self._do(WriteEvent("member.joined", {key: message[key] for key in ("member", "node", "pid", "host")}))
        if adopted is not None:
            member.rank = adopted["rank"]
        if "error" in status:
            self._apply(self.lifecycle.error(member, status["error"]["error"]))
        if "exited" in status and not self.ended:
            self._apply(self.failures.exited(member, status["exited"], status["ago_s"]))
        expected.pop(name, None)
        if self.ended:
            return
        if self.phase is Phase.GATHERING:
            self._apply(self.generations.start_if_ready())
        elif adopted is not None and not expected:
            self._apply(self.adoption.all_here("a new coordinator took over: all members registered again"))
        elif known is not None and known.rank is not None and not expected:
            self._apply(self.adoption.all_here(f"{name} registered again"))
        if "leaving" in status and name in self.roster.members:
            self._apply(self.draining.preempted(member, status["leaving"]["grace_s"]))
        self._apply(self.generations.welcome_newcomers())
        if self.phase is Phase.WAITING:  # a newcomer may have become ready while there was no coordinator
            self._apply(self.generations.admit())

    def _on_beat(self, member: Member, message: Message) -> None:
        member.beat(message, time.monotonic())
        if message["held_s"] is not None:
            self._do(Send(member, orders.ResumeWorker(member.member, message["held_s"])))

    def _on_session(self, member: Member, message: Message) -> None:
        member.session, member.finished = message, None
        if member.rank is not None:
            self._apply(self.lifecycle.open_session())
            return
        self._do(WriteEvent("member.ready", {"member": member.member, "node": member.node}))
        if self.state.generation > 0:
            self._do(JournalGeneration(f"{member.node} stands by"))
        self._apply(self.generations.admit())

    def _on_finished(self, member: Member, message: Message) -> None:
        self._apply(self.lifecycle.finished(member, message))

    def _on_error(self, member: Member, message: Message) -> None:
        self._apply(self.lifecycle.error(member, message["error"]))

    def _on_anomaly(self, member: Member, message: Message) -> None:
        self.lifecycle.anomaly(message)

    def _on_done(self, member: Member, message: Message) -> None:
        self._apply(self.lifecycle.done(member, message))

    def _on_report(self, member: Member, message: Message) -> None:
        self._apply(self.generations.reported(member, message))

    def _on_synced(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation:
            self.incidents.rejoined(member.member, message["text"])

    def _on_committed(self, member: Member, message: Message) -> None:
        state = self.state
        state.step, state.step_time_s = message["step"], message["step_time_s"]
        if message["generation"] != state.generation:
            return
        state.sound_s = time.monotonic()
        if not state.committed_in_generation:
            state.committed_in_generation = True
            self.failures.settled()
            self.incidents.resumed(state.step, len(self.roster.generation()))
            self._do(SayState("running", f"step {state.step} committed"))
            self._apply(self.generations.welcome_newcomers())
            self._apply(self.generations.admit())
        if self.joining.hold_step is not None:
            if state.step >= self.joining.hold_step:
                ready = tuple(m for m in state.ready_newcomers() if m.snapshot is not None)
                self._do(BeginGeneration("newcomers hold the state", ready))
        elif self.phase is Phase.TRAINING:
            self._apply(self.stragglers.committed(state.step, len(state.ready_newcomers())))

    def _on_offered(self, member: Member, message: Message) -> None:
        self._apply(self.joining.offered(member, message))

    def _on_approached(self, member: Member, message: Message) -> None:
        self._apply(self.joining.approached(member, message["step"]))

    def _on_elastic(self, member: Member, message: Message) -> None:
        self._apply(self.scripts.answered(member, message))

    def _on_leaving(self, member: Member, message: Message) -> None:
        self._apply(self.draining.preempted(member, message["grace_s"]))

    def _on_left(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation:
            self.draining.left(member, message["step"])

    def _on_rendezvous(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation:
            for other in self.roster.generation()[1:]:
                self._do(Send(other, facts.RendezvousStore(message["generation"], message["port"])))

    def _on_back(self, member: Member, message: Message) -> None:
        self._apply(self.checkpoints.back(member, message))

    def _on_saved(self, member: Member, message: Message) -> None:
        self._apply(self.checkpoints.saved(member, message))

    def _on_refused(self, member: Member, message: Message) -> None:
        self._apply(self.checkpoints.refused(message))

    def _on_loaded(self, member: Member, message: Message) -> None:
        self._apply(self.checkpoints.loaded(member, message))

    def _on_unreadable(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation:
            self._do(BeginGeneration(f"rank {member.rank} cannot read the checkpoint of step {message['step']}"))

    def _on_restore(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation:
            for newcomer in self.roster.newcomers():
                if newcomer.snapshot is not None:  # of a state that is given up now
                    del self.roster.members[newcomer.member]
                    self._do(Send(newcomer, orders.Restart()))
            self._do(BeginGeneration("the session goes back to its newest checkpoint"))

    def _on_suspect(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation:
            self.failures.suspect(message["rank"])

    def _on_accuse(self, member: Member, message: Message) -> None:
        if message["generation"] == self.state.generation and self.phase not in (Phase.FORMING, Phase.REFORMING):
            self._do(BeginGeneration(f"rank {member.rank} on {member.node} found that {message['text']}"))

    def _on_exited(self, member: Member, message: Message) -> None:
        self._apply(self.failures.exited(member, message["code"], message["ago_s"]))

    def _on_struck(self, member: Member, message: Message) -> None:
        """A fault that the cell asked for strikes the member now."""
        member.signs.struck_s = time.monotonic()

    # ---- what people and supervisors command ----------------------------------------------------------------

    def scale(self, target: int, lends: bool, reason: str) -> None:
        """Set the number of members that the job should have; ``lends``: other jobs have nodes that its owner wants."""
        self.draining.lends, self.state.target = lends, target
        if len(self.roster.generation()) > target and not self.state.trains:
            reason += "; ranks outside hp.Session leave when a session opens, when they end, or at an elastic event"
        self._do(Decide("membership", target, reason))
        self._do(JournalGeneration(reason))
        self._apply(self.generations.admit())

    def drain(self, member: Member, cause: str, reason: str) -> None:
        """A health finding makes the member leave its node at the end of a step."""
        self._apply(self.draining.unhealthy(member, cause, reason))

    def blame(self, member: Member, cause: str, reason: str) -> None:
        """A log rule calls the member broken: fence it."""
        self._apply(self.failures.blame(member, cause, reason))

    # ---- what is done -----------------------------------------------------------------------------------------

    def _apply(self, actions: Generator[Action, None, T]) -> T:
        """Do what a part wants, one after the other; returns what the part returns."""
        while True:
            try:
                action = next(actions)
            except StopIteration as end:
                value: T = end.value
                return value
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Send(member, order):
                member.tell(order)
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
                self._apply(self.generations.regroup(reason, newcomers))
            case BeginSession():
                self._apply(self.generations.begin_session())
            case ReleaseMember(member, begins_again):
                del self.roster.members[member.member]
                member.channel.send(encode(orders.Restart() if begins_again else orders.Release()))
                self._apply(self.joining.gone(member))
            case Remove(member):
                del self.roster.members[member.member]
                self._apply(self.joining.gone(member))
            case End(state, reason):
                self._end(state, reason)

    def _enter(self, phase: Phase) -> None:
        """Go to another phase and journal it; PhaseError where the table has no such transition."""
        if self.ended:
            return  # what was decided in the same pass as the end comes too late
        sentence = step(self.phase, phase).sentence
        self.state.phase = phase
        self.state.expected.clear()
        if phase is Phase.GATHERING:
            self.state.gathering_since_s = time.monotonic()
        self._say_phase(sentence)

    def _end(self, state: str, reason: str) -> None:
        if not self.ended:
            self._farewell = step(self.phase, Phase.ENDED).sentence
            self.state.phase = Phase.ENDED
            self.final = (state, reason)

    def _say_phase(self, reason: str) -> None:
        """Journal the phase where it is a new one."""
        if self.phase.value != self._said_phase:
            self._said_phase = self.phase.value
            self.reporter.write("phase.changed", {"phase": self.phase.value, "reason": reason})

    def _say_state(self, state: str, reason: str) -> None:
        """Journal the state of the job where it is a new one."""
        if state != self.said_state:
            self.said_state = state
            self.reporter.write("job.state", {"state": state, "reason": reason}, durable=state in TERMINAL_STATES)
