"""Members and generations of one job as its coordinator knows them, and the words in which members are told.

State and speech only: what is to be done is decided by the `Conductor`, which is an ensemble that thinks.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from ...core.events import TERMINAL_STATES
from ...core.views import View
from ...storage.journal_writer import JournalWriter
from ..connection import Message
from ..context import Context
from .incidents import Incidents
from .phase import Phase, first, step
from .roster import Member, Roster
from .scripts import Scripts

FORMING_S = 5.0


class Ensemble:
    """Members, generations and the state of one job."""

    def __init__(
        self, context: Context, view: View, reporter: JournalWriter, opened: int = 0, closed: int = 0, restarts: int = 0
    ) -> None:
        self.spec = context.spec
        self.reporter = reporter
        self.scripts = Scripts(self, restarts)
        self.roster = Roster()
        self.incidents = Incidents(reporter.write, view["incidents"])
        self.state: str = view["state"]
        self.generation: int = view["generation"]
        self.target: int = view["target"] or self.spec.nodes
        self.session: Message | None = view["session"]
        self.session_index = max(1, opened)
        self.session_over = 0 < opened <= closed
        self.step: int = view["step"]
        self.step_time_s: float | None = view["step_time_s"]
        self.committed_in_generation = False
        self.expected: dict[str, dict[str, Any]] = {m["member"]: m for m in view["members"]}  # to register again
        self._phase = first(
            ended=view["state"] in TERMINAL_STATES,
            members=bool(self.expected),
            session=self.session is not None,
            session_over=self.session_over,
        )
        self._phase_journaled: str = view["phase"]
        self.forming_since_s = 0.0
        self.forming_patience_s = FORMING_S
        self.finishing = False  # a member has come to the end of the session: nobody else enters or leaves
        self.suspects: dict[int, float] = {}
        self.parted: list[str] = []  # who has left at a step boundary since the last plan
        self.restarts = 0
        self.lends = False  # nodes that its owner wants: it keeps no spare meanwhile
        self.final: tuple[str, str] | None = None
        self._sentence = ""
        self.born_s = self.ticked_s = time.monotonic()
        self.sound_s = self.born_s  # when all members were last known to hold the same, correct state
        self.gathering_since_s = self.born_s

    @property
    def phase(self) -> Phase:
        """What the members are at."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go to another phase and journal it; PhaseError where the table has no such transition."""
        transition = step(self._phase, phase)
        self._phase = phase
        self.expected.clear()
        self.say_phase(transition.sentence)

    def say_phase(self, reason: str) -> None:
        """Journal the phase where it is a new one."""
        if self._phase.value != self._phase_journaled:
            self._phase_journaled = self._phase.value
            self.reporter.write("phase.changed", {"phase": self._phase.value, "reason": reason})

    @property
    def trains(self) -> bool:
        """The ranks have opened a session, and it is not over."""
        return self.session is not None and not self.session_over

    @property
    def ended(self) -> bool:
        """The job is over; only its farewell is left."""
        return self._phase is Phase.ENDED

    def end(self, state: str, reason: str) -> None:
        """The job ends; the coordinator takes leave of the agents and journals this state."""
        if not self.ended:
            self._sentence = step(self._phase, Phase.ENDED).sentence
            self._phase = Phase.ENDED
            self.final = (state, reason)

    def say_final_state(self) -> None:
        """Journal how the job ended: the last event of all."""
        if self.final is not None:
            self.say_phase(self._sentence)
            self.say_state(*self.final)

    def run_cells(self, members: list[Member]) -> None:
        """Let workers run the cell, in an environment as torchrun gives it."""
        members_now = self.roster.generation()
        told = next((m.run for m in members_now if m.run is not None), None)  # by a coordinator before this one
        host = told["master_host"] if told else next((m.host for m in members_now), "127.0.0.1")
        port = told["master_port"] if told else _free_port()
        world = len(members_now)
        for member in members:
            place = {"rank": member.rank, "world_size": world, "master_host": host, "master_port": port}
            member.run = {"type": "run", "restarts": self.scripts.restarts} | place
            member.channel.send(member.run)

    def welcome_newcomers(self) -> None:
        """Spares run the cell up to its session, once the members' session trains."""
        # where every place is taken, who comes now is in no hurry, and must not slow down those that recover
        hurry = self.step > 0 and len(self.roster.generation()) < self.target
        settled = self.committed_in_generation or self.phase is Phase.WAITING or hurry
        if not (self.trains and settled) or self.session_index > 1:
            return
        self.run_cells([m for m in self.roster.newcomers() if not m.running])

    def call(self, members: list[Member]) -> None:
        """Call members into the present generation: they connect and say what they hold."""
        self.forming_since_s, self.committed_in_generation = time.monotonic(), False
        self.suspects.clear()
        peers = [m.address() for m in members]
        for member in members:
            member.report, member.finished, member.leaving, member.left = None, None, False, None
            member.back = False
            member.channel.send({"type": "form", "generation": self.generation, "rank": member.rank, "members": peers})
        self.enter(Phase.FORMING if self.phase is Phase.RUNNING_SCRIPT else Phase.REFORMING)

    def release(self, member: Member, begins_again: bool = False) -> None:
        """Send a member home, its node is free; or let its node begin again with a newcomer."""
        del self.roster.members[member.member]
        member.channel.send({"type": "restart" if begins_again else "release"})

    def journal_generation(self, reason: str) -> None:
        """Journal who is a member now, who stands by, and why."""
        self.reporter.write(
            "generation.formed",
            {
                "generation": self.generation,
                "members": [m.public() for m in self.roster.generation()],
                "spares": [m.public() for m in self.roster.newcomers()],
                "target": self.target,
                "reason": reason,
            },
        )

    def decided(self, policy: str, value: Any, reason: str) -> None:
        """Journal a decision with its sentence."""
        self.reporter.write("decision.made", {"policy": policy, "value": value, "reason": reason})

    def say_state(self, state: str, reason: str) -> None:
        """Journal the state of the job where it is a new one."""
        if state == self.state:
            return
        self.state = state
        self.reporter.write("job.state", {"state": state, "reason": reason}, durable=state in TERMINAL_STATES)


def _free_port() -> int:
    """A TCP port on loopback that was free a moment ago, for the person's own process group."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
