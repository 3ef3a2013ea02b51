"""Asks the real policies on behalf of a simulation. The planner has no recovery rules of its own.

Policies decide about individual members; simulated members are alike, so a few represent all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from ..core.elastic import ElasticRange
from ..policy import batching, healing, interval, membership, recovery, scaling
from ..policy.decision import Decision
from . import causes
from .scenario import Scenario

Stages = list[tuple[str, float]]
SAVED, BEGIN = "saved", "begin"
FEW = 4


@dataclass(frozen=True, slots=True)
class Way:
    """How a job continues: with ``members`` (None: it waits), after the ``stages``.

    ``back``: the point from which work is computed again, `SAVED` or `BEGIN`; None where none is.
    """

    members: int | None
    stages: Stages
    back: str | None
    reason: str


class Rules:
    """The policies, asked on behalf of one scenario; answers to the same question are kept."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._pasts: dict[int, list[healing.Past]] = {}
        self.speed = cache(self._speed)
        self._detection_s = cache(partial(causes.detection_s, step_s=scenario.timing.step_s))
        self._convicted = cache(causes.convicted)
        self._salvage = cache(self._salvaged)

    def lost_with(self, cause: causes.Cause, members: int) -> int:
        """How many members a cause takes away."""
        if cause.kind == causes.PROGRAM:
            return members
        few = min(members, FEW)
        if cause.kind == causes.PREEMPTED:
            return self._preempted(few)
        if cause.kind == causes.CORRUPT:
            fenced = self._convicted(few)
            return members if fenced == few else fenced
        return 1

    def _speed(self, members: int) -> float:
        """Useful work per second, relative to full strength: the largest share of a step decides."""
        timing, full = self.scenario.timing, self.scenario.cluster.instances
        if members in timing.step_times:
            return timing.step_s / timing.step_times[members]
        shares = batching.share_sizes(self.scenario.micro_batches * full, members)
        return self.scenario.micro_batches / max(shares)

    def next_size(self, present: int, newcomers: int, target: int) -> Decision[int | None]:
        """How many members continue, None where they are too few."""
        minimum = min(self._range.minimum, target)
        return membership.next_size(present, newcomers, target, minimum, self._range)

    def begin(self, ready: int, target: int) -> int:
        """How many of the ready members begin the job, after a long enough wait."""
        spec = self.scenario.spec
        minimum = min(spec.start_minimum, target)
        return membership.start(ready, target, minimum, membership.BEATS_LOST_S, allowed=spec.elastic).value

    def after_loss(
        self, cause: causes.Cause, survivors: int, ready: int, target: int, settled: bool, stateful: bool, step: int
    ) -> Way:
        """What a job does after it lost members: ``stateful`` survivors hold the training state at ``step``.

        ``settled``: a step was committed since the last change of members.
        """
        keep = stateful and survivors > 0 and self.scenario.in_place
        enter = recovery.at_once(target - survivors, self.scenario.state_bytes, self.scenario.timing.step_s)
        peers = "peers" in self.scenario.components
        newcomers = ready if keep and settled and enter.value and peers else 0
        if not keep:
            newcomers = survivors + ready
        present = survivors if keep else 0
        size = self.next_size(present, newcomers, target)
        if size.value is None and not newcomers:
            size = self.next_size(present, ready, target)
        if keep:
            entered = max(0, (size.value or 0) - present)
            plan = self._salvage(min(survivors, FEW))
            return Way(size.value, self._stages(cause, plan, survivors, entered), _back(plan), size.reason)
        reports = [recovery.MemberState(None, checkpoints=((step, SAVED),) if step else ())]
        found = recovery.plan(reports, self.scenario.micro_batches)
        return Way(size.value, self._start_stages(), _back(found.value), found.reason)

    def entry(self, members: int, ready: int, target: int) -> Way:
        """What a job does about ready newcomers, or about too few members that can continue now."""
        size = self.next_size(members, ready, target).value
        enter = recovery.at_once(target - members, self.scenario.state_bytes, self.scenario.timing.step_s)
        stages: Stages = [("regroup", self.scenario.timing.regroup_s)]
        if enter.value or "peers" not in self.scenario.components:
            stages.append(("give state", self._state_s))
        return Way(size, stages, None, enter.reason)

    def interval(self, failures: int, observed_s: float) -> float | None:
        """Training time between two checkpoints; None where saving costs nothing."""
        saved = self.scenario.checkpoints
        if self.scenario.interval == "fixed" or not saved.cost_s:
            return saved.every_s(self.scenario.cluster.mtbf_s)
        return interval.decide(failures, observed_s, saved.cost_s, saved.cost_s, self.scenario.state_bytes).value

    def remedy(self, cause: causes.Cause, node: int, now_s: float, under_repair: int, nodes: int) -> str:
        """The remedy for an instance that failed: one of `core.health.ACTIONS`."""
        past = self._pasts.get(node, [])
        found = healing.heal([cause.finding()], past, now_s, under_repair=under_repair, nodes=nodes).value
        if found.action == "replace":
            self._pasts.pop(node, None)
        elif found.action == "reboot":
            self._pasts[node] = [*past, healing.Past(found.action, found.fault, now_s)]
        return found.action

    def leaving(self, members: int, target: int, unsettled_s: float) -> int:
        """How many members leave at the next step boundary because the job is to be smaller."""
        return len(membership.leavers(_candidates(members), (), target, self._range, unsettled_s).value)

    def _preempted(self, members: int) -> int:
        """How many members leave where the last one is preempted."""
        present = _candidates(members)
        return len(membership.leavers(present, {p.member for p in present[-1:]}, members, self._range).value)

    def unsettled(self, members: int) -> bool:
        """Whether this number of members is between two sizes on which the job may run."""
        return bool(self._range.sizes) and self._range.fit(members) not in (0, members)

    def allotted(self, claim: scaling.Claim, free: int) -> int:
        """How many of the ``free`` instances the job gets."""
        nodes = [scaling.ScalableNode(f"n{number}", False, True) for number in range(free)]
        capacity, standby = self.scenario.cluster.instances, self.scenario.spares
        (found,) = scaling.allot_free([claim], nodes, capacity, standby)
        return len(found.value.start)

    @property
    def _range(self) -> ElasticRange:
        scenario = self.scenario
        return scenario.elastic or ElasticRange(1, scenario.cluster.instances)

    @property
    def _state_s(self) -> float:
        """How long members stand still to give their state to newcomers."""
        if "peers" in self.scenario.components:
            return self.scenario.state_bytes / recovery.STATE_BYTES_PER_S
        return 2 * self.scenario.checkpoints.cost_s  # one of them writes a checkpoint, newcomers read it

    def _start_stages(self) -> Stages:
        down = self.scenario.downtime
        found = [("detect", down.detect), ("diagnose", down.diagnose), ("repair", down.repair)]
        return [*found, ("restart", down.restart), ("recompute", down.recompute)]

    def _stages(self, cause: causes.Cause, plan: recovery.RecoveryPlan, survivors: int, entered: int) -> Stages:
        timing = self.scenario.timing
        state: Stages = [("give state", self._state_s)] if entered else []
        if cause.kind in timing.stalls:
            return [("stall", timing.stalls[cause.kind]), *state]
        if cause.kind == causes.PREEMPTED:
            return [("regroup", timing.regroup_s), *state]
        again_s = self._again_s(plan, survivors)
        found = [("detect", self._detection_s(cause.kind)), ("regroup", timing.regroup_s)]
        return [*found, ("micro-batches again", again_s), *state]

    def _salvaged(self, few: int) -> recovery.RecoveryPlan:
        """The plan of `policy.recovery` after a loss halfway through a step, where a few others hold the state."""
        share = self.scenario.micro_batches
        half = range(share // 2)
        held = [tuple((rank * share + leaf, rank * share + leaf + 1) for leaf in half) for rank in range(few)]
        reports = [recovery.MemberState(1, nodes=nodes, history=1) for nodes in held]
        return recovery.plan(reports, share * (few + 1)).value

    def _again_s(self, plan: recovery.RecoveryPlan, survivors: int) -> float:
        """How much longer the step takes because the others compute the lost member's share."""
        share = self.scenario.micro_batches
        own = len(plan.shares) * (share - share // 2)
        extra = sum(map(len, plan.shares)) - own
        return extra * self.scenario.timing.step_s / share / survivors


def _candidates(members: int) -> list[membership.Candidate]:
    return [membership.Candidate(f"m{rank}", f"n{rank}", rank, True) for rank in range(members)]


def _back(plan: recovery.RecoveryPlan) -> str | None:
    if plan.load is not None:
        return SAVED
    return BEGIN if plan.step == 0 else None
