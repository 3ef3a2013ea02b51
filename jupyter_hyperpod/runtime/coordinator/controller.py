"""The conductor: what a coordinator thinks. Hears what members say, decides by `policy`, tells members what to do.

A kill comes in through `losses`, is decided in `_regroup` by `policy.membership` and, once every member has said what
it holds, in `_plan_step` by `policy.recovery`. Every decision is journaled with its sentence. Sockets and the clock
belong to `coordinator`; here the present time is asked for, never waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...core.units import plural
from ...core.views import View
from ...policy import membership, recovery, verdict
from ...storage.journal_writer import JournalWriter
from ..connection import Channel, Message
from ..context import Context
from .checkpoints import Durability
from .draining import Departures
from .failures import Losses
from .incidents import RUNG_SALVAGE
from .job_state import FORMING_S
from .phase import CALLED, Phase
from .roster import Member
from .stragglers import Balancer

ADOPTION_S = 3.0
AWAY_S = 0.25
START_WITHOUT_SPARES_S = 0.5


class Conductor(Durability):
    """Decides for the members of one job."""

    def __init__(
        self, context: Context, view: View, reporter: JournalWriter, opened: int = 0, closed: int = 0, restarts: int = 0
    ) -> None:
        super().__init__(context, view, reporter, opened, closed, restarts)
        self.losses = Losses(self, self._regroup)
        self.departures = Departures(self, self._go_on_without)
        self.balancer = Balancer(self, self.departures, self._regroup)

    def hear(self, channel: Channel, message: Message) -> None:
        """Take in what an agent or its worker says; what nobody understands, or a fenced member says, is ignored."""
        handler = getattr(self, f"_on_{message['type']}", None)
        if handler is None or self.ended:
            return
        member = self.roster.members.get(message["member"])
        if message["type"] == "register" or (member is not None and member.channel is channel):
            if member is not None:
                member.signs.heard_s = time.monotonic()
            handler(channel, message)

    def hung_up(self, channel: Channel) -> None:
        """An agent's connection has ended."""
        member = self.roster.by_channel(channel)
        if member is not None and not self.ended:
            self.losses.hung_up(member)

    def tick(self, now: float) -> None:
        """Look at the clock: who has been silent for too long?"""
        away_s, self.ticked_s = now - self.ticked_s, now
        if self.ended:
            return
        if self.phase is Phase.GATHERING:
            self._start_if_ready()
        elif self.phase is Phase.ADOPTING and now - self.born_s > ADOPTION_S:
            self._adopt_those_who_came()
        if away_s > AWAY_S:
            self.losses.excuse(away_s, now)
        else:
            self.losses.tick(now)
        if self.coming and self.phase is Phase.WAITING:
            self._admit()
        self.departures.tick(now)
        self.scripts.tick(now)
        if self.phase in CALLED and now - self.forming_since_s > self.forming_patience_s:
            self.forming_patience_s *= 2
            self._regroup(f"generation {self.generation} did not form in {now - self.forming_since_s:.1f} s")

    # ---- what members say ---------------------------------------------------------------------------------

    def _on_register(self, channel: Channel, message: Message) -> None:
        name, status = message["member"], message["status"]
        known = self.roster.members.get(name)
        adopted = self.expected.get(name)
        if message["rank"] is not None and known is None and adopted is None:
            reason = f"{name} belongs to an older generation: its node begins again with a new worker"
            self.decided("membership", f"fence {name}", reason)
            channel.send({"type": "restart"})
            return
        member = self.roster.add(message, channel, time.monotonic())
        if known is None:
            self.reporter.write("member.joined", {key: message[key] for key in ("member", "node", "pid", "host")})
        if adopted is not None:
            member.rank = adopted["rank"]
        if "error" in status:
            self._on_error(channel, status["error"] | {"member": name})
        if "exited" in status and not self.ended:
            self._on_exited(channel, {"member": name, "code": status["exited"], "ago_s": status["ago_s"]})
        self.expected.pop(name, None)
        if self.ended:
            return
        if self.phase is Phase.GATHERING:
            self._start_if_ready()
        elif adopted is not None and not self.expected:
            self._adopted("a new coordinator took over: all members registered again")
        elif known is not None and known.rank is not None and not self.expected:
            self._adopted(f"{name} registered again")
        if "leaving" in status and name in self.roster.members:
            self.departures.preempted(member, status["leaving"]["grace_s"])
        self.welcome_newcomers()

    def _on_beat(self, channel: Channel, message: Message) -> None:
        if member := self.roster.members.get(message["member"]):
            member.beat(message, time.monotonic())
            if message["held_s"] is not None:
                channel.send({"type": "resume", "member": member.member, "sent_s": message["held_s"]})

    def _on_session(self, channel: Channel, message: Message) -> None:
        member = self.roster.members[message["member"]]
        member.session, member.finished = message, None
        if member.rank is None:
            self.reporter.write("member.ready", {"member": member.member, "node": member.node})
            if self.generation > 0:
                self.journal_generation(f"{member.node} stands by")
            self._admit()
        else:
            self._open_session()

    def _on_report(self, channel: Channel, message: Message) -> None:
        member = self.roster.members[message["member"]]
        if message["generation"] != self.generation or member.rank is None or self.phase not in CALLED:
            return
        nodes = tuple((low, high) for low, high in message["nodes"])
        checkpoints = tuple((step, token) for step, token in message["checkpoints"])
        told = message["statement"]
        place = {"member": member.member, "place": f"rank {member.rank} on {member.node}"}
        member.statement = verdict.Statement(**(told | place)) if told else None
        member.report = recovery.MemberState(message["step"], nodes, message["history"], message["digest"], checkpoints)
        self._plan_step()

    def _on_synced(self, channel: Channel, message: Message) -> None:
        if message["generation"] == self.generation:
            self.incidents.rejoined(message["member"], message["text"])

    def _on_committed(self, channel: Channel, message: Message) -> None:
        self.step, self.step_time_s = message["step"], message["step_time_s"]
        if message["generation"] != self.generation:
            return
        self.sound_s = time.monotonic()
        if not self.committed_in_generation:
            self.committed_in_generation = True
            self.losses.settled()
            self.incidents.resumed(self.step, len(self.roster.generation()))
            self.say_state("running", f"step {self.step} committed")
            self.welcome_newcomers()
            self._admit()
        if self.hold_step is not None and self.step >= self.hold_step:
            self._regroup("newcomers hold the state", [m for m in self.ready_newcomers() if m.snapshot is not None])
        elif self.phase is Phase.TRAINING and self.hold_step is None:
            self.balancer.committed(self.step, len(self.ready_newcomers()))

    def _on_elastic(self, channel: Channel, message: Message) -> None:
        self.scripts.answered(self.roster.members[message["member"]], message)

    def _on_leaving(self, channel: Channel, message: Message) -> None:
        self.departures.preempted(self.roster.members[message["member"]], message["grace_s"])

    def _on_left(self, channel: Channel, message: Message) -> None:
        if message["generation"] == self.generation:
            self.departures.left(self.roster.members[message["member"]], message["step"])

    def _on_rendezvous(self, channel: Channel, message: Message) -> None:
        if message["generation"] == self.generation:
            for member in self.roster.generation()[1:]:
                member.channel.send({key: message[key] for key in ("type", "generation", "port")})

    def _on_unreadable(self, channel: Channel, message: Message) -> None:
        if message["generation"] == self.generation:
            rank = self.roster.members[message["member"]].rank
            self._regroup(f"rank {rank} cannot read the checkpoint of step {message['step']}")

    def _on_restore(self, channel: Channel, message: Message) -> None:
        if message["generation"] == self.generation:
            for newcomer in self.roster.newcomers():
                if newcomer.snapshot is not None:  # of a state that is given up now
                    del self.roster.members[newcomer.member]
                    newcomer.channel.send({"type": "restart"})
            self._regroup("the session goes back to its newest checkpoint")

    def _on_suspect(self, channel: Channel, message: Message) -> None:
        if message["generation"] == self.generation:
            self.losses.suspect(message["rank"])

    def _on_accuse(self, channel: Channel, message: Message) -> None:
        member = self.roster.members[message["member"]]
        if message["generation"] == self.generation and self.phase not in CALLED:
            self._regroup(f"rank {member.rank} on {member.node} found that {message['text']}")

    def _on_exited(self, channel: Channel, message: Message) -> None:
        if member := self.roster.members.get(message["member"]):
            self.losses.exited(member, message["code"], message["ago_s"])

    def _on_struck(self, channel: Channel, message: Message) -> None:
        """The cell has asked for a fault."""
        self.roster.members[message["member"]].signs.struck_s = time.monotonic()

    # ---- deciding -----------------------------------------------------------------------------------------

    def _start_if_ready(self) -> None:
        waited_s = time.monotonic() - self.gathering_since_s
        minimum = self.spec.start_minimum if self.generation == 0 else min(self.spec.range.minimum, self.target)
        spares_too = waited_s > START_WITHOUT_SPARES_S
        ready = sorted((m for m in self.roster.newcomers() if spares_too or not m.spare), key=lambda m: m.spare)
        decision = membership.start(len(ready), self.target, minimum, waited_s, allowed=self.spec.elastic)
        if not decision.value:
            return
        self.generation += 1
        members = sorted(ready[: decision.value], key=lambda m: _natural(m.node))
        for rank, member in enumerate(members):
            member.rank = rank
        self.decided("membership", decision.value, decision.reason)
        self.journal_generation(decision.reason)
        if self.generation > 1:
            self.scripts.began(members, decision.reason)
        self.say_state("running", decision.reason)
        self.run_cells(members)
        self.enter(Phase.RUNNING_SCRIPT)

    def _adopted(self, reason: str) -> None:
        """Every member of the generation has registered with this coordinator: go on where the one before stopped."""
        self.decided("membership", self.generation, reason)
        if self.trains:
            self._regroup(reason)
            return
        if self.phase is Phase.ADOPTING:
            self.enter(Phase.RUNNING_SCRIPT)
        self.incidents.adopted()
        members = self.roster.generation()
        for member in members:
            over = self.session_over and member.session is not None and member.session["index"] <= self.session_index
            if over:
                member.session = None
                member.channel.send({"type": "close", "generation": self.generation})
        self.run_cells([m for m in members if not m.running])
        self.scripts.taken_over()
        self._open_session()
        self.end_if_all_done()

    def _admit(self) -> None:
        """Bring ready newcomers in, at a moment when nothing else is going on."""
        if self.session is None:
            return
        if self.phase is Phase.WAITING and self.ready_newcomers():
            if self.more_are_coming(len(self.ready_newcomers())):
                return
            self._regroup("newcomers are ready")
        elif self.phase is Phase.TRAINING:
            enter = recovery.at_once(self.incidents.vacancies, self.session["state_bytes"], self.step_time_s)
            if enter.value or "peers" not in self.spec.components:
                self._enter_after_commit(enter.reason)
            else:
                self.invite()
                self.meet()

    def _enter_after_commit(self, reason: str) -> None:
        ready = self.ready_newcomers()
        if self.room(len(ready)) and self.committed_in_generation:
            self._regroup(f"newcomers are ready, {reason}", ready)

    def _go_on_without(self, reason: str) -> None:
        """Members have left alive: those who can take their places at once do."""
        self._regroup(reason, self.entrants(1).value)

    def _regroup(self, reason: str, newcomers: Sequence[Member] = ()) -> None:
        """Form the next generation of those that are left and of ``newcomers`` that can enter now."""
        if self.ended or self.expected or not self.trains:
            return  # when all have registered, or are given up, this is decided for all
        minimum = min(self.spec.range.minimum, self.target)
        present = self.roster.candidates
        decision = membership.next_members(present(newcomers), self.target, minimum, self.spec.range)
        if decision.value is None:
            ready = self.ready_newcomers()
            decision = membership.next_members(present(ready), self.target, minimum, self.spec.range)
        self.decided("membership", decision.value, f"{reason}: {decision.reason}")
        if decision.value is None:
            self.enter(Phase.WAITING)
        if not self.roster.generation() and not self._may_start_again(decision.value is not None):
            return
        if decision.value is None:
            self.welcome_newcomers()
            return
        joining = [self.roster.members[m] for m in decision.value if self.roster.members[m].rank is None]
        rung = RUNG_SALVAGE if self.roster.generation() else None  # it depends on what newcomers find
        dropped = [m for m in self.roster.generation() if m.member not in decision.value]
        for member in dropped:
            self.release(member)
        for rank, name in enumerate(decision.value):
            self.roster.members[name].rank = rank
        self.generation += 1
        self.journal_generation(f"{reason}: {decision.reason}")
        self.incidents.fenced(self.generation, rung)
        for member in joining:
            self.incidents.replaced(member.member, member.node)
        self.call(self.roster.generation())

    def _may_start_again(self, enough: bool) -> bool:
        """All members are lost. Newcomers can take the same trajectory again, but not past an earlier session."""
        self.finishing, self.all_lost = False, True
        self.restarts += enough
        if self.session_index > 1:
            self.end(
                "failed", "all members were lost in a later session of the cell, and there is no durable checkpoint"
            )
        elif self.restarts > self.spec.max_restarts:
            self.end("failed", f"all members were lost {self.restarts} times; max_restarts is {self.spec.max_restarts}")
        return not self.ended

    def _plan_step(self) -> None:
        members = self.roster.generation()
        reports = [m.report for m in members if m.report is not None]
        if len(reports) < len(members) or self.session is None:
            return
        charges = verdict.judge([m.statement for m in members if m.statement is not None])
        if self.losses.act_upon(charges):
            return
        decision = recovery.plan(reports, self.session["micro_batches"])
        plan = decision.value
        self.roster.seat(plan.step)
        self.state_found(plan, any(report.step is not None for report in reports))
        self.decided("recovery", {"step": plan.step, "shares": [len(share) for share in plan.shares]}, decision.reason)
        self.forming_patience_s, self.planned_step = FORMING_S, plan.step
        self.sound_s = time.monotonic()
        self.suspects.clear()  # every connection stands: who could not be reached while they were made has been
        for member in members:
            member.channel.send(
                {
                    "type": "go",
                    "generation": self.generation,
                    "rank": member.rank,
                    "step": plan.step,
                    "donors": plan.donors,
                    "replay": plan.replay,
                    "fresh": plan.fresh,
                    "held": plan.held,
                    "shares": plan.shares,
                    "owners": [m.member for m in members],
                    "paces": self.balancer.paces(),
                    "parted": self.parted,
                    "load": plan.load,
                    "loaders": plan.loaders,
                }
            )
        self.parted = []
        self.enter(Phase.CLOSING if self.finishing else Phase.TRAINING)
        self._admit()

    def _adopt_those_who_came(self) -> None:
        missing, self.expected = self.expected, {}
        reason = f"{plural(len(missing), 'member')} did not return: {', '.join(sorted(missing))}"
        for name, record in missing.items():
            cause, detail = membership.NODE_LOST, "it did not return to the new coordinator"
            lost = {"member": name, "node": record["node"], "rank": record["rank"], "cause": cause, "detail": detail}
            self.reporter.write("member.lost", lost)
            if not self.session_over:
                since_s = self.incidents.unheard_since_s(self.born_s)
                self.incidents.begin(name, record["node"], record["rank"], cause, detail, since_s)
        if self.session is None:
            self.enter(Phase.RUNNING_SCRIPT)
            self.scripts.lost_with_coordinator(reason)
        else:
            self._adopted(reason)

    def begin_session(self, members: list[Member]) -> None:
        """Whoever is too many leaves before the first step: outside a session no rank can be taken away."""
        if len(members) > self.target:
            self._regroup("the session is opened")
        else:
            super().begin_session(members)

    def scaled(self, target: int, reason: str) -> None:
        """The owner wishes for another number of members."""
        self.target = target
        if len(self.roster.generation()) > target and not self.trains:
            reason += "; ranks outside hp.Session leave when a session opens, when they end, or at an elastic event"
        self.decided("membership", target, reason)
        self.journal_generation(reason)
        self._admit()


def _natural(name: str) -> tuple[str, int]:
    """node-2 before node-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)
