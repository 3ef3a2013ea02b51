"""Lost members: how a loss is noticed, who is fenced, and whether the node gets a new worker.

A member is lost when its agent reports that the worker exited, when its agent's connection ends, when it is silent
(`policy.membership`), or when it computed wrong numbers (`policy.verdict`). A silent or wrong member is killed before
the others continue without it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Generator

from ...policy import membership, program, verdict
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import Action, Actions, BeginGeneration, Decide, End, Remove, SayState, Send, WriteEvent
from .checkpoints import CheckpointTracker
from .incidents import CORRUPTION, PROGRAM
from .job_state import JobState
from .joining import Joining
from .phase import Phase
from .roster import Member
from .session_lifecycle import SessionLifecycle

SUSPECT_S = 1.0
CRASHES_IN_A_ROW = 3


class Failures:
    """Takes lost members out of the job; the others regroup without them."""

    def __init__(
        self, state: JobState, joining: Joining, checkpoints: CheckpointTracker, lifecycle: SessionLifecycle
    ) -> None:
        self._state = state
        self._joining = joining
        self._checkpoints = checkpoints
        self._lifecycle = lifecycle
        self._suspects: dict[int, float] = {}  # ranks that another cannot reach, and since when
        self._findings: list[tuple[int, program.ChargedVerdict]] = []  # by session, those that fenced somebody
        self._warmed_s = 0.0  # the longest that a first micro-batch of a process has taken
        self._told_of_later_session = False
        self._crashes: dict[str, int] = {}  # workers that a node lost since the last committed step

    def tick(self, now: float) -> Actions:
        """Fence a member that has been silent, or has held the others up, for too long."""
        state = self._state
        members = [m for m in (*state.roster.generation(), *state.roster.newcomers()) if m.alive]
        step_s, floor_s = state.step_time_s, state.spec.hang_timeout_s
        late_s = membership.beat_interval_s(len(members)) - membership.BEAT_S
        self._warmed_s = max([self._warmed_s, *(m.warmed_s for m in members)])
        timeout_s = membership.hang_timeout_s(step_s, floor_s) + late_s
        first_s = membership.first_timeout_s(step_s, floor_s, self._warmed_s)
        decision = membership.lost([m.pulse(now, late_s) for m in members], timeout_s, first_s)
        if decision.value is not None:
            name, cause = decision.value
            yield Decide("membership", f"fence {name}", decision.reason)
            member = state.roster.members[name]
            yield from self._fence(member, cause, decision.reason, member.signs.fault_s(cause))
        elif state.phase not in (Phase.TRAINING, Phase.CLOSING):
            return
        elif any(now - since > SUSPECT_S for since in self._suspects.values()):
            yield BeginGeneration("a connection between members broke")
        elif state.phase is Phase.CLOSING or any(member.back for member in members):
            yield from self._look_for_the_left_behind(now - timeout_s)

    def excuse(self, away_s: float, now: float) -> None:
        """This process did not run for ``away_s`` (a suspended machine?): do not count that time as silence."""
        for member in self._state.roster.members.values():
            member.excuse(away_s, now)
        self._suspects = {rank: min(now, since + away_s) for rank, since in self._suspects.items()}

    @handles(facts.PeerSuspected)
    def suspect(self, member: Member, suspected: facts.PeerSuspected) -> None:
        """A member cannot reach another."""
        self._suspects.setdefault(suspected.rank, time.monotonic())

    def reconnected(self) -> None:
        """A new generation connects, or is connected: drop the suspicions of the old one."""
        self._suspects.clear()

    def settled(self) -> None:
        """A step was committed: start to count consecutive crashes from 0."""
        self._crashes.clear()

    def hung_up(self, member: Member) -> Actions:
        """The connection to a member's agent has ended."""
        if member.done:
            member.exited = 0
            yield from self._lifecycle.end_if_all_done()
        elif member.exited is None:
            detail = f"the connection to the agent of {member.node} was reset"
            yield from self._lose(member, membership.NODE_LOST, detail, member.signs.fault_s(membership.NODE_LOST))

    @handles(facts.WorkerExited)
    def exited(self, member: Member, exited: facts.WorkerExited) -> Actions:
        """The agent says that its worker has ended."""
        if member.exited is not None:
            return
        member.exited = code = exited.code
        if member.failed:
            return
        if member.done:
            yield from self._lifecycle.end_if_all_done()
            return
        if member.preempted:
            cause = "preempted"
            detail = f"{member.member} could not leave within {self._state.spec.grace_s:g} s: {_end(code)}"
        else:
            cause = "process killed" if code < 0 else "process died"
            detail = f"{member.member} ended with {_end(code)}"
        yield from self._lose(member, cause, detail, time.monotonic() - exited.ago_s)

    def blame(self, member: Member, cause: str, reason: str) -> Actions:
        """Somebody who watches a member from outside calls it broken."""
        if member.member in self._state.roster.members:
            yield Decide("membership", f"fence {member.member}", reason)
            yield from self._fence(member, cause, reason, member.signs.fault_s(membership.HUNG))

    def act_upon(self, charges: verdict.Charges) -> Generator[Action, None, bool]:
        """Members differ: kill those whose memory or arithmetic was wrong, and give their state to nobody.

        Where the program is the likely cause the job stops instead. False where nobody was found wrong.
        """
        state, members = self._state, self._state.roster.members
        if charges.reason:
            yield Decide("integrity", [charge.member for charge in charges.value], charges.reason)
        if not charges.value:
            return False
        found = program.ChargedVerdict(charges.value, state.roster.seats())
        earlier = [finding for session, finding in self._findings if session == state.session_index]
        judgement = program.is_to_blame(earlier, found)
        if judgement.value:
            yield from self._stop_for(found, f"{charges.reason}. {judgement.reason[0].upper()}{judgement.reason[1:]}")
            return True
        self._findings.append((state.session_index, found))
        accused = [(members[c.member], c.reason) for c in charges.value if c.member in members]
        for member, reason in accused:
            # a fault of arithmetic came after the last step that all agreed on
            yield from self._fence(member, CORRUPTION, reason, max(self._state.sound_s, member.signs.struck_s))
        return bool(accused)

    def _stop_for(self, found: program.ChargedVerdict, text: str) -> Actions:
        """End the job: the program makes its members differ, and would do so again."""
        accused = [self._state.roster.members[name] for name in found.accused]
        rank, node = (accused[0].rank, accused[0].node) if len(accused) == 1 else (None, "")
        yield Decide("integrity", "stop", text)
        self._state.incidents.judged(found.step + 1, PROGRAM, "stop", node, rank, text, self._state.sound_s)
        yield End("failed", text)

    def _fence(self, member: Member, cause: str, reason: str, since_s: float) -> Actions:
        yield Send(member, orders.SendSignal(member.member, int(signal.SIGKILL)))
        yield from self._lose(member, cause, reason, since_s)

    def _lose(self, member: Member, cause: str, detail: str, since_s: float) -> Actions:
        state, rank = self._state, member.rank
        yield WriteEvent(
            "member.lost",
            {"member": member.member, "node": member.node, "rank": rank, "cause": cause, "detail": detail},
        )
        yield Remove(member)
        if state.generation == 0 or rank is None:
            yield from self._restart_worker(member, cause)
            return
        if not state.session_over:
            state.incidents.begin(member.member, member.node, rank, cause, detail, since_s)
        if not state.trains:
            yield from self._lifecycle.lost_without_session(member, cause, detail)
            return
        yield from self._tell_of_later_session(member, rank)
        yield SayState("recovering", f"rank {rank} on {member.node}: {cause}")
        if "inprocess" not in state.spec.components:
            yield from self._checkpoints.restart_all(member)
        enter = self._joining.entrants(state.incidents.vacancies)
        why = f", {enter.reason}" if enter.reason and state.ready_newcomers() else ""
        yield BeginGeneration(f"rank {rank} on {member.node} was lost: {cause}{why}", tuple(enter.value))
        yield from self._restart_worker(member, cause)

    def _tell_of_later_session(self, lost: Member, rank: int) -> Actions:
        """Say once that a newcomer, which runs the cell from its start, cannot come to the present session."""
        state = self._state
        if not state.can_join and not self._told_of_later_session:
            self._told_of_later_session = True
            left = len(state.roster.generation())
            text = (
                f"rank {rank} on {lost.node} is not replaced: the job goes on with {left} of {left + 1} members. "
                "A newcomer runs the cell from its start, and the end of the session before is not kept"
            )
            yield WriteEvent("warning.raised", {"text": text})

    def _restart_worker(self, lost: Member, cause: str) -> Actions:
        """Rung 2: the agent lives, so it forks a new worker, which becomes a newcomer."""
        state = self._state
        if lost.channel.closed or state.ended or state.session_over:
            return
        if cause == membership.PARTITION:
            reason = f"{lost.node} begins again with a new worker as soon as it can be reached"
            yield Decide("recovery", "wait", reason)
            yield Send(lost, orders.Restart())
            return
        self._crashes[lost.node] = self._crashes.get(lost.node, 0) + 1
        if self._crashes[lost.node] > CRASHES_IN_A_ROW:
            reason = (
                f"{lost.node} lost {CRASHES_IN_A_ROW} workers without a committed step in between: not restarted again"
            )
            yield Decide("recovery", "give up", reason)
            yield Send(lost, orders.Release())
            if not state.roster.members:
                yield End("failed", f"{lost.member}: {reason}")
            return
        yield Decide("recovery", "restart", f"the agent of {lost.node} is alive: it forks a new worker")
        yield Send(lost, orders.Restart())

    def _look_for_the_left_behind(self, since_s: float) -> Actions:
        """End the job if members left their session, or went back, while others wait for them in a later step."""
        members = self._state.roster.generation()
        said = {m.rank: f"left its session after step {m.finished.step}" for m in members if m.finished}
        said |= {m.rank: "goes back to a checkpoint" for m in members if m.back}
        others = [m for m in members if m.rank not in said]
        if all(m.phase == "exchange" and m.progress_s < since_s for m in others):
            said |= {m.rank: "goes on" for m in others}
        if len(said) == len(members) and len(texts := list(dict.fromkeys(said.values()))) > 1:
            found = " while ".join(f"rank {next(r for r in said if said[r] == text)} {text}" for text in texts)
            yield End(
                "failed",
                f"{found}: every rank must leave the loop, or go back, at the same step; "
                "session.stop(reason) on one rank ends the loops of all",
            )


def _end(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
