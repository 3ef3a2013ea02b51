"""Forms generations, the first one and the next after every change, and tells each member what to do.

`regroup` decides with `policy.membership` who is in the next generation. When every member has reported its state,
`reported` decides with `policy.recovery` how they continue.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from ...core.units import plural
from ...policy import growth, membership, recovery, verdict
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import (
    Action,
    Actions,
    BeginGeneration,
    Decide,
    End,
    Enter,
    JournalGeneration,
    ReleaseMember,
    SayState,
    Send,
    SendByRank,
)
from .checkpoints import CheckpointTracker
from .draining import Draining
from .failures import Failures
from .incidents import RUNG_SALVAGE
from .job_state import JobState
from .joining import Joining
from .phase import CALLED, Phase
from .roster import Member
from .scripts import Scripts
from .stragglers import Stragglers

FORMING_S = 5.0
START_WITHOUT_SPARES_S = 0.5
BETWEEN = "the cell is not between two steps: newcomers join when the next one begins"


@dataclass(eq=False)
class Generations:
    """Who is a member, by rank, and what every member is told when a generation forms."""

    _state: JobState
    _joining: Joining
    _draining: Draining
    _failures: Failures
    _checkpoints: CheckpointTracker
    _stragglers: Stragglers
    _scripts: Scripts
    _forming_since_s: float = 0.0
    _patience_s: float = FORMING_S
    _lost_all: int = 0  # how often
    _awaited: set[str] = field(default_factory=set)  # members that have not reported their state in this generation

    # ---- the first one, and those of a script that begins again ----------------------------------------------

    def start_if_ready(self) -> Actions:
        """Let the cell begin when enough workers are there."""
        state = self._state
        waited_s = time.monotonic() - state.gathering_since_s
        minimum = state.spec.start_minimum if state.generation == 0 else min(state.spec.range.minimum, state.target)
        if len(state.roster.members) < min(minimum, state.target):
            return
        spares_too = waited_s > START_WITHOUT_SPARES_S
        ready = sorted((m for m in state.roster.newcomers() if spares_too or not m.spare), key=lambda m: m.spare)
        decision = membership.start(len(ready), state.target, minimum, waited_s, allowed=state.spec.elastic)
        if not decision.value:
            return
        state.generation += 1
        members = sorted(ready[: decision.value], key=lambda m: _natural(m.node))
        for rank, member in enumerate(members):
            state.roster.place(member, rank)
        yield Decide("membership", decision.value, decision.reason)
        yield JournalGeneration(decision.reason)
        if state.generation > 1:
            yield from self._scripts.began(members, decision.reason)
        yield SayState("running", decision.reason)
        yield from self.run_cells(members)
        yield Enter(Phase.RUNNING_SCRIPT)

    def run_cells(self, members: Sequence[Member]) -> Actions:
        """Let workers run the cell, in an environment as torchrun gives it."""
        members_now = self._state.roster.generation()
        told = next((m.run for m in members_now if m.run is not None), None)  # by a coordinator before this one
        host = told.master_host if told else next((m.host for m in members_now), "127.0.0.1")
        port = told.master_port if told else _free_port()
        world = len(members_now)
        for member in members:
            member.run = orders.RunCell(member.rank, world, host, port, self._scripts.restarts)
            yield Send(member, member.run)

    def welcome_newcomers(self) -> Actions:
        """Spares run the cell up to its session, once the members' session trains."""
        state = self._state
        # where every place is taken, who comes now is in no hurry, and must not slow down those that recover
        hurry = state.step > 0 and len(state.roster.generation()) < state.target
        settled = state.committed_in_generation or state.phase is Phase.WAITING or hurry
        if state.trains and settled and state.can_join:
            yield from self.run_cells([m for m in state.roster.newcomers() if not m.running])

    # ---- the next one ----------------------------------------------------------------------------------------

    def tick(self, now: float) -> Actions:
        """A generation that does not form in time is formed anew."""
        waited_s = now - self._forming_since_s
        if self._state.phase in CALLED and waited_s > self._patience_s:
            self._patience_s *= 2
            yield BeginGeneration(f"generation {self._state.generation} did not form in {waited_s:.1f} s")

    def begin_session(self) -> Actions:
        """Call the members in. Those beyond the target leave now, because no rank can leave outside a session."""
        members = self._state.roster.generation()
        if len(members) > self._state.target:
            yield BeginGeneration("the session is opened")
        elif any(member.rank != rank for rank, member in enumerate(members)):
            yield BeginGeneration("the session is opened, and no rank may be missing")
        else:
            yield from self._call(members)

    def admit(self) -> Actions:
        """Bring ready newcomers in, at a moment when nothing else is going on."""
        state = self._state
        if state.session is None:
            return
        ready = state.ready_newcomers()
        if state.phase is Phase.WAITING and ready:
            if not self._checkpoints.more_are_coming(len(ready)):
                yield BeginGeneration("newcomers are ready")
        elif state.phase is Phase.TRAINING:
            enter = recovery.at_once(state.incidents.vacancies, state.session.state_bytes, state.step_time_s)
            if (state.joins_between or not enter.value) and "peers" in state.spec.components:
                yield from self._joining.invite()
                yield from self._joining.meet()
            elif state.room(len(ready)) and state.committed_in_generation:
                yield BeginGeneration(f"newcomers are ready, {enter.reason}", tuple(ready))

    def regroup(self, reason: str, newcomers: Sequence[Member]) -> Actions:
        """Form the next generation of those that are left and of ``newcomers`` that can enter now."""
        state = self._state
        if state.ended or state.expected or not state.trains:
            return  # when all have registered, or are given up, this is decided for all
        if not state.roster.generation() and (alone := [m for m in state.roster.newcomers() if m.has_snapshot]):
            yield from self._begin_anew(alone, recovery.LEFT_ALONE)
            newcomers = [m for m in newcomers if m not in alone]
        minimum = min(state.spec.range.minimum, state.target)
        present = state.roster.candidates
        decision = membership.next_members(present(newcomers), state.target, minimum, state.spec.range)
        if decision.value is None:
            ready = state.ready_newcomers()
            decision = membership.next_members(present(ready), state.target, minimum, state.spec.range)
        yield Decide("membership", decision.value, f"{reason}: {decision.reason}")
        if decision.value is None:
            yield Enter(Phase.WAITING)
        if not state.roster.generation() and not (yield from self._may_begin_again(decision.value is not None)):
            return
        if decision.value is None:
            yield from self.welcome_newcomers()
            return
        yield from self._form(decision.value, f"{reason}: {decision.reason}")

    def _begin_anew(self, members: Sequence[Member], reason: str) -> Actions:
        """These have to run the cell from its beginning, in new processes."""
        yield Decide("recovery", [member.node for member in members], reason)
        for member in members:
            yield ReleaseMember(member, begins_again=True)

    def _form(self, names: Sequence[str], reason: str) -> Actions:
        """The members of these names are the next generation, in this order."""
        state = self._state
        joining = [state.roster.members[name] for name in names if state.roster.members[name].rank is None]
        rung = RUNG_SALVAGE if state.roster.generation() else None  # it depends on what newcomers find
        chosen = set(names)
        dropped = [m for m in state.roster.generation() if m.member not in chosen]
        for member in dropped:
            yield ReleaseMember(member)
        for rank, name in enumerate(names):
            state.roster.place(state.roster.members[name], rank)
        state.generation += 1
        yield JournalGeneration(reason)
        state.incidents.fenced(state.generation, rung)
        for member in joining:
            state.incidents.replaced(member.member, member.node)
        yield from self._call(state.roster.generation())

    def _may_begin_again(self, enough: bool) -> Generator[Action, None, bool]:
        """All members are lost. Newcomers can take the same trajectory again, but not past an earlier session."""
        state = self._state
        state.finishing = False
        self._checkpoints.lost_all()
        self._lost_all += enough
        text = ""
        if not state.can_join:
            text = "all members were lost in a later session of the cell, and the end of the one before is not kept"
        elif self._lost_all > state.spec.max_restarts:
            text = f"all members were lost {self._lost_all} times; max_restarts is {state.spec.max_restarts}"
        if text:
            yield End("failed", text)
        return not text

    def _call(self, members: Sequence[Member]) -> Actions:
        """Call members into the present generation: they connect and say what they hold."""
        state = self._state
        self._joining.give_up()
        self._forming_since_s, state.committed_in_generation = time.monotonic(), False
        self._failures.reconnected()
        peers = tuple(m.address() for m in members)
        for member in members:
            member.report, member.finished, member.leaving, member.left = None, None, False, None
            member.back = False
        self._awaited = {member.member for member in members}
        yield SendByRank(members, orders.FormGeneration(state.generation, 0, peers))
        yield Enter(Phase.FORMING if state.phase is Phase.RUNNING_SCRIPT else Phase.REFORMING)
        if members:  # whoever is rank 0 now is told when the next checkpoint is due
            yield from self._checkpoints.say_interval(members[0])

    # ---- what it is told to do -------------------------------------------------------------------------------

    @handles(facts.StateReported)
    def reported(self, member: Member, reported: facts.StateReported) -> Actions:
        """A member says what it holds; when all have, the generation is told how to go on."""
        state = self._state
        if member.rank is None or state.phase not in CALLED:
            return
        member.report, found = reported.state, reported.state.statement
        place = f"rank {member.rank} on {member.node}"
        member.statement = replace(found, member=member.member, place=place) if found is not None else None
        self._awaited.discard(member.member)
        if not self._awaited:
            yield from self._plan()

    @handles(facts.RendezvousStore)
    def rendezvous(self, member: Member, store: facts.RendezvousStore) -> Actions:
        """Rank 0 serves a store: the others are told where."""
        for other in self._state.roster.generation()[1:]:
            yield Send(other, store)

    @handles(facts.CheckpointUnreadable)
    def unreadable(self, member: Member, found: facts.CheckpointUnreadable) -> Actions:
        """A member cannot load what the plan names: the next plan names another checkpoint."""
        yield BeginGeneration(f"rank {member.rank} cannot read the checkpoint of step {found.step}")

    @handles(facts.CorruptionFound)
    def accused(self, member: Member, found: facts.CorruptionFound) -> Actions:
        """Checksums differ: the reports of the next generation show which member is wrong."""
        if self._state.phase not in CALLED:
            yield BeginGeneration(f"rank {member.rank} on {member.node} found that {found.text}")

    @handles(facts.RestoreAsked)
    def restore(self, member: Member, asked: facts.RestoreAsked) -> Actions:
        """The members have given their state up; newcomers that hold a copy of it begin again."""
        self._joining.give_up()
        self._state.repeated.forget()
        for newcomer in self._state.roster.newcomers():
            if newcomer.snapshot is not None:
                yield ReleaseMember(newcomer, begins_again=True)
        yield BeginGeneration("the session goes back to its newest checkpoint")

    @handles(facts.NewcomersEarly)
    def early(self, member: Member, found: facts.NewcomersEarly) -> Actions:
        """Newcomers begin again, and join between two turns of the loop, unless too few would be left without them."""
        state = self._state
        if state.phase in CALLED:
            return
        members = state.roster.generation()
        newcomers = [m for m in members if m.rank in found.ranks]
        left = len(members) - len(newcomers)
        if left < min(state.spec.range.minimum, state.target) or "peers" not in state.spec.components:
            yield BeginGeneration(f"only {plural(left, 'member')} would be left without newcomers")
            return
        state.joins_between = found.runs
        yield from self._begin_anew(newcomers, found.text)
        yield BeginGeneration("the others go on without them")

    def _plan(self) -> Actions:
        state = self._state
        members = state.roster.generation()
        reports = [m.report for m in members if m.report is not None]
        assert state.session is not None
        charges = verdict.judge([m.statement for m in members if m.statement is not None])
        if (yield from self._failures.act_upon(charges)):
            return
        alone = recovery.left_alone(reports)
        if alone.value:
            yield from self._begin_anew([members[rank] for rank in alone.value], alone.reason)
            yield BeginGeneration("the others go on without them")
            return
        yield from self._follow_members(reports)
        first = recovery.newest_step(reports)
        micro_batches = growth.count_at(state.batches, first) if state.batches else state.session.micro_batches
        decision = recovery.plan(reports, micro_batches)
        plan = decision.value
        if recovery.are_aside(reports, plan) and (early := [m for m in members if m.report and m.report.waiting]):
            for member in early:
                yield ReleaseMember(member, begins_again=True)
            # though they may be too few: they cannot come to where newcomers join without a generation
            yield from self._form([m.member for m in members if m not in early], BETWEEN)
            return
        state.roster.seat(plan.step)
        held = any(report.step is not None for report in reports)
        self._checkpoints.state_found(plan, held)
        if not held and plan.load is None:
            yield from state.repeated.begins_again(state.session_step)
        value = {"step": plan.step, "shares": [len(share) for share in plan.shares]}
        yield Decide("recovery", value, decision.reason)
        self._patience_s, state.planned_step = FORMING_S, plan.step
        state.sound_s = time.monotonic()
        self._failures.reconnected()
        owners, paces = tuple(m.member for m in members), tuple(self._stragglers.paces())
        parted = tuple(self._draining.parted())
        plan = replace(
            plan, generation=state.generation, owners=owners, parted=parted, paces=paces, batches=state.batches
        )
        yield SendByRank(members, orders.FollowPlan(state.generation, plan))
        yield Enter(Phase.CLOSING if state.finishing else Phase.TRAINING)
        yield from self.admit()

    def _follow_members(self, reports: Sequence[recovery.MemberState]) -> Actions:
        """Where the global batch may change, it follows the number of members from a step that none has begun."""
        state = self._state
        assert state.session is not None
        if (terms := state.session.growth) is None:
            return
        step, begun = recovery.newest_step(reports), recovery.begun(reports)
        decision = growth.next_schedule(terms, state.batches, step, begun, state.session_step, len(reports))
        if decision.value != state.batches:
            state.batches = decision.value
            yield Decide("batch", growth.listed(state.batches, terms.micro_batch), decision.reason)

    def record(self, reason: str) -> dict[str, object]:
        """Who is a member now, who stands by, and why: as journaled."""
        state = self._state
        return {
            "generation": state.generation,
            "members": [m.public() for m in state.roster.generation()],
            "spares": [m.public() for m in state.roster.newcomers()],
            "target": state.target,
            "reason": reason,
        }


def _natural(name: str) -> tuple[str, int]:
    """node-2 before node-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)


def _free_port() -> int:
    """A TCP port on loopback that was free a moment ago, for the person's own process group."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
