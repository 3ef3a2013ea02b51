"""Members that are lost: how that is noticed, who is fenced, and what becomes of the node.

A loss is told by an agent (its worker exited), by the end of an agent's connection, by silence (`policy.membership`) or
by evidence of corruption (`policy.verdict`). Who is silent or corrupt is killed before the others go on without it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from ...policy import membership, program, verdict
from .checkpoints import Durability
from .incidents import CORRUPTION, PROGRAM
from .phase import Phase
from .roster import Member

SUSPECT_S = 1.0
CRASHES_IN_A_ROW = 3


class Losses:
    """Takes lost members out of the ensemble; ``regroup(reason, newcomers)`` forms the generation without them."""

    def __init__(self, ensemble: Durability, regroup: Callable[[str, Sequence[Member]], None]) -> None:
        self._ensemble = ensemble
        self._regroup = regroup
        self._findings: list[tuple[int, program.Finding]] = []  # by session, those that fenced somebody
        self._warmed_s = 0.0  # the longest that a first micro-batch of a process has taken
        self._told_of_later_session = False
        self._crashes: dict[str, int] = {}  # workers that a node lost since the last committed step

    def tick(self, now: float) -> None:
        """Look at the clock: who has been silent, or in the way, for too long?"""
        ensemble = self._ensemble
        members = [m for m in (*ensemble.roster.generation(), *ensemble.roster.newcomers()) if m.alive]
        step_s, floor_s = ensemble.step_time_s, ensemble.spec.hang_timeout_s
        self._warmed_s = max([self._warmed_s, *(m.warmed_s for m in members)])
        timeout_s = membership.hang_timeout_s(step_s, floor_s)
        first_s = membership.first_timeout_s(step_s, floor_s, self._warmed_s)
        decision = membership.lost([m.pulse(now) for m in members], timeout_s, first_s)
        if decision.value is not None:
            name, cause = decision.value
            ensemble.decided("membership", f"fence {name}", decision.reason)
            member = ensemble.roster.members[name]
            self._fence(member, cause, decision.reason, member.signs.fault_s(cause))
        elif ensemble.phase not in (Phase.TRAINING, Phase.CLOSING):
            return
        elif any(now - since > SUSPECT_S for since in ensemble.suspects.values()):
            self._regroup("a connection between members broke", ())
        elif ensemble.phase is Phase.CLOSING or any(member.back for member in members):
            self._look_for_the_left_behind(now - timeout_s)

    def excuse(self, away_s: float, now: float) -> None:
        """This process stood still for so long, maybe with the whole machine: nobody is to blame for that time."""
        for member in self._ensemble.roster.members.values():
            member.excuse(away_s, now)
        suspects = self._ensemble.suspects
        suspects.update({rank: min(now, since + away_s) for rank, since in suspects.items()})

    def suspect(self, rank: int) -> None:
        """A member cannot reach this one."""
        self._ensemble.suspects.setdefault(rank, time.monotonic())

    def settled(self) -> None:
        """A step was committed: workers do not crash in a row any more."""
        self._crashes.clear()

    def hung_up(self, member: Member) -> None:
        """The connection to a member's agent has ended."""
        if member.done:
            member.exited = 0
            self._ensemble.end_if_all_done()
        elif member.exited is None:
            detail = f"the connection to the agent of {member.node} was reset"
            self._lose(member, membership.NODE_LOST, detail, member.signs.fault_s(membership.NODE_LOST))

    def exited(self, member: Member, code: int, ago_s: float) -> None:
        """The agent says that its worker ended ``ago_s`` ago, by exit status ``code`` (a signal is negative)."""
        if member.exited is not None:
            return
        member.exited = code
        if member.failed:
            return
        if member.done:
            self._ensemble.end_if_all_done()
            return
        since_s = time.monotonic() - ago_s
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if member.preempted:
            grace_s = self._ensemble.spec.grace_s
            self._lose(member, "preempted", f"{member.member} could not leave within {grace_s:g} s: {name}", since_s)
            return
        cause = "process killed" if code < 0 else "process died"
        self._lose(member, cause, f"{member.member} ended with {name}", since_s)

    def blame(self, member: Member, cause: str, reason: str) -> None:
        """Somebody who watches a member from outside calls it broken."""
        if member.member in self._ensemble.roster.members:
            self._ensemble.decided("membership", f"fence {member.member}", reason)
            self._fence(member, cause, reason, member.signs.fault_s(membership.HUNG))

    def act_upon(self, charges: verdict.Charges) -> bool:
        """Members differ: kill those whose memory or arithmetic was wrong, and give their state to nobody.

        Where the program is the likely cause the job stops instead. False where nobody was found wrong.
        """
        ensemble, members = self._ensemble, self._ensemble.roster.members
        if charges.reason:
            ensemble.decided("integrity", [charge.member for charge in charges.value], charges.reason)
        if not charges.value:
            return False
        found = program.Finding(charges.value, ensemble.roster.seats())
        earlier = [finding for session, finding in self._findings if session == ensemble.session_index]
        judgement = program.is_to_blame(earlier, found)
        if judgement.value:
            self._stop_for(found, f"{charges.reason}. {judgement.reason[0].upper()}{judgement.reason[1:]}")
            return True
        self._findings.append((ensemble.session_index, found))
        accused = [(members[c.member], c.reason) for c in charges.value if c.member in members]
        for member, reason in accused:
            # a fault of arithmetic came after the last step that all agreed on
            self._fence(member, CORRUPTION, reason, max(self._ensemble.sound_s, member.signs.struck_s))
        return bool(accused)

    def _stop_for(self, found: program.Finding, text: str) -> None:
        """End the job: the program makes its members differ, and would do so again."""
        accused = [self._ensemble.roster.members[name] for name in found.accused]
        rank, node = (accused[0].rank, accused[0].node) if len(accused) == 1 else (None, "")
        self._ensemble.decided("integrity", "stop", text)
        self._ensemble.incidents.judged(found.step + 1, PROGRAM, "stop", node, rank, text, self._ensemble.sound_s)
        self._ensemble.end("failed", text)

    def _fence(self, member: Member, cause: str, reason: str, since_s: float) -> None:
        member.channel.send({"type": "signal", "member": member.member, "number": int(signal.SIGKILL)})
        self._lose(member, cause, reason, since_s)

    def _lose(self, member: Member, cause: str, detail: str, since_s: float) -> None:
        ensemble, rank = self._ensemble, member.rank
        ensemble.reporter.write(
            "member.lost",
            {"member": member.member, "node": member.node, "rank": rank, "cause": cause, "detail": detail},
        )
        del ensemble.roster.members[member.member]
        ensemble.leave_approach(member)
        if ensemble.generation == 0 or rank is None:
            self._restart_worker(member, cause)
            return
        if not ensemble.session_over:
            ensemble.incidents.begin(member.member, member.node, rank, cause, detail, since_s)
        if not ensemble.trains:
            ensemble.lost_without_session(member, cause, detail)
            return
        self._tell_of_later_session(member, rank)
        ensemble.say_state("recovering", f"rank {rank} on {member.node}: {cause}")
        if "inprocess" not in ensemble.spec.components:
            ensemble.restart_all(member)
        enter = ensemble.entrants(ensemble.incidents.vacancies)
        why = f", {enter.reason}" if enter.reason and ensemble.ready_newcomers() else ""
        self._regroup(f"rank {rank} on {member.node} was lost: {cause}{why}", enter.value)
        self._restart_worker(member, cause)

    def _tell_of_later_session(self, lost: Member, rank: int) -> None:
        """Say once that a newcomer, which runs the cell from its start, cannot enter any session but the first."""
        ensemble = self._ensemble
        if ensemble.session_index > 1 and not self._told_of_later_session:
            self._told_of_later_session = True
            left = len(ensemble.roster.generation())
            text = (
                f"rank {rank} on {lost.node} is not replaced: the job goes on with {left} of {left + 1} members. "
                "Only the first hp.Session of a cell replaces lost members; give a later one a cell of its own"
            )
            ensemble.reporter.write("warning.raised", {"text": text})

    def _restart_worker(self, lost: Member, cause: str) -> None:
        """Rung 2: the agent lives, so it forks a new worker, which becomes a newcomer."""
        ensemble = self._ensemble
        if lost.channel.closed or ensemble.ended or ensemble.session_over:
            return
        if cause == membership.PARTITION:
            reason = f"{lost.node} begins again with a new worker as soon as it can be reached"
            ensemble.decided("recovery", "wait", reason)
            lost.channel.send({"type": "restart"})
            return
        self._crashes[lost.node] = self._crashes.get(lost.node, 0) + 1
        if self._crashes[lost.node] > CRASHES_IN_A_ROW:
            reason = (
                f"{lost.node} lost {CRASHES_IN_A_ROW} workers without a committed step in between: not restarted again"
            )
            ensemble.decided("recovery", "give up", reason)
            lost.channel.send({"type": "release"})
            if not ensemble.roster.members:
                ensemble.end("failed", f"{lost.member}: {reason}")
            return
        ensemble.decided("recovery", "restart", f"the agent of {lost.node} is alive: it forks a new worker")
        lost.channel.send({"type": "restart"})

    def _look_for_the_left_behind(self, since_s: float) -> None:
        """Some have left their session or go back, others wait for them in a further step: no generation mends that."""
        members = self._ensemble.roster.generation()
        said = {m.rank: f"left its session after step {m.finished['step']}" for m in members if m.finished}
        said |= {m.rank: "goes back to a checkpoint" for m in members if m.back}
        others = [m for m in members if m.rank not in said]
        if all(m.phase == "exchange" and m.progress_s < since_s for m in others):
            said |= {m.rank: "goes on" for m in others}
        if len(said) == len(members) and len(texts := list(dict.fromkeys(said.values()))) > 1:
            found = " while ".join(f"rank {next(r for r in said if said[r] == text)} {text}" for text in texts)
            self._ensemble.end("failed", f"{found}: every rank must leave the loop, or go back, at the same step")
