"""The event simulation: instances fail, jobs recover by the real policies, simulated time passes.

Failures of instances are a superposition of Poisson processes, which is one Poisson process: it has no memory, so its
next event can be drawn again whenever something changes. A working instance therefore needs no record, and a hundred
thousand of them cost as much as ten. Repairs and arrivals are in a heap.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count

from ..core.errors import SpecError
from ..policy.membership import SETTLE_S
from . import causes
from .goodput import PRODUCTIVE, RESTART
from .job import EPSILON_S, Job
from .outcome import Outcome, Tally, summarise
from .rules import Rules, Stages, Way
from .scenario import Rival, Scenario, Spread

REPORTED = 12  # how many sentences of the policies are kept, from the first
REVIEWED_S = 3600.0  # first look at the checkpoint interval while nothing has failed


@dataclass
class _Fleet:
    """Instances that no job holds, and those that are away."""

    free: int
    total: int
    standby: int
    away: int = 0


@dataclass
class Simulation:
    """One run of a scenario."""

    scenario: Scenario
    source: random.Random
    now_s: float = 0.0
    failures: int = 0
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.rules = Rules(scenario)
        size = scenario.cluster.instances
        self._fleet = _Fleet(size + scenario.spares, size + scenario.spares, scenario.spares)
        self._main = Job("job", size, scenario.work_s, scenario.priority)
        self._main.minimum = scenario.spec("job", size).start_minimum
        self._main.spares = scenario.spares
        self._main.cost_s = scenario.checkpoints.cost_s
        self._jobs = [self._main]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._rate = scenario.cluster.rate / 3600.0
        self._bounds = list(accumulate(cause.count for cause in scenario.mix))
        self._schedule = sorted(scenario.faults, key=lambda fault: fault.after_s, reverse=True)
        self._downtimes = Spread(scenario.downtime.total_s, scenario.downtime_shape)
        self._reviewed_s = REVIEWED_S

    def run(self) -> Tally:
        """Simulate until the job's work is done, or the limit is reached."""
        main = self._main
        for rival in self.scenario.rivals:
            self._at(rival.start_s, partial(self._arrive, rival))
        self._allot()
        self._review()
        while not main.done and self.now_s < self.scenario.limit_s:
            self._step()
        return self._settled()

    def _step(self) -> None:
        """Go to whatever comes first."""
        main, scenario = self._main, self.scenario
        fails = self._failing()
        failure_s = self.now_s + self.source.expovariate(fails * self._rate) if fails and self._rate else math.inf
        mark_s = min(main.work_s, self._schedule[-1].after_s) if self._schedule else main.work_s
        changes = [(job.next_change_s(mark_s if job is main else job.work_s), job) for job in self._jobs]
        change_s, changed = min(changes, key=lambda change: change[0])
        next_s = min(failure_s, self.now_s + change_s, scenario.limit_s)
        if self._events and self._events[0][0] <= next_s:
            at_s, _, act = heapq.heappop(self._events)
            self._advance(at_s)
            act()
            return
        self._advance(next_s)
        if next_s == failure_s:
            self._fail()
        elif next_s == self.now_s and changed.started and not changed.stop:
            self._changed(changed)

    def _advance(self, to_s: float) -> None:
        for job in self._jobs:
            job.advance(to_s - self.now_s)
        self.now_s = to_s

    def _changed(self, job: Job) -> None:
        """A job has reached the end of its stages, a scheduled fault, or the end of its work."""
        if job is not self._main and job.done:
            self._fleet.free += job.held
            self._jobs.remove(job)
            self._allot()
        elif job is self._main and self._schedule and self._schedule[-1].after_s <= job.position_s + EPSILON_S:
            kind = self._schedule.pop().kind
            self._lose(job, causes.Cause(kind, 1, kind, "monitor"))
        else:
            job.stateful = True
            self._admit(job)

    # ---- failures -----------------------------------------------------------------------------------------

    def _failing(self) -> int:
        """Instances that can fail now."""
        exposed = self._fleet.free
        for job in self._jobs:
            stands = bool(job.stop) and self.scenario.convention == PRODUCTIVE
            exposed += job.held - (job.members if stands else 0)
        return exposed

    def _fail(self) -> None:
        """One of the instances that can fail fails."""
        mix = self.scenario.mix
        cause = mix[bisect(self._bounds, self.source.random() * self._bounds[-1])]
        victim = self.source.random() * self._failing()
        for job in self._jobs:
            exposed = job.members if not (job.stop and self.scenario.convention == PRODUCTIVE) else 0
            if victim < exposed:
                self._lose(job, cause)
                return
            victim -= exposed
            if victim < job.ready + job.coming:
                job.ready, job.coming = (job.ready - 1, job.coming) if job.ready else (0, job.coming - 1)
                self._away(cause, job)
                return
            victim -= job.ready + job.coming
        if self._fleet.free:
            self._fleet.free -= 1
            self._away(cause, None)

    def _lose(self, job: Job, cause: causes.Cause) -> None:
        """A member of a job fails."""
        scenario = self.scenario
        if job is self._main:
            self.failures += 1
            self.tally.incidents[cause.name] += 1
        lost = self.rules.lost_with(cause, job.members)
        if cause.kind == causes.PREEMPTED and not lost:
            lost = 1  # no member could take over its state in time
        gone = 1 if cause.kind == causes.PROGRAM or lost == job.members else lost
        everybody = lost == job.members
        settled = job.training
        job.members -= gone
        if scenario.repair is None and not scenario.in_place:
            job.ready += gone  # its replacement is there when the job starts again
        elif cause.kind == causes.PROGRAM:
            job.ready += gone
        else:
            for _ in range(gone):
                self._away(cause, job)
        step = math.floor(job.saved_s / scenario.timing.step_s)
        way = self.rules.after_loss(
            cause, job.members, job.ready, job.target, settled, job.stateful and not everybody, step
        )
        self._go(job, way)
        self._say("recovery", f"{cause.name}: {way.reason}")
        self._review()

    def _away(self, cause: causes.Cause, job: Job | None) -> None:
        """An instance is rebooted or replaced, or only its process restarts."""
        scenario, fleet = self.scenario, self._fleet
        action = "watch"
        if scenario.repair is not None:
            node = self.source.randrange(fleet.total)
            action = self.rules.remedy(cause, node, self.now_s, fleet.away, fleet.total)
        if action != "watch":
            assert scenario.repair is not None
            fleet.away += 1
            took = scenario.reboot if action == "reboot" else scenario.repair
            self._at(self.now_s + took.draw(self.source), self._repaired)
        elif job is not None:
            self._come(job, 1)
        else:
            fleet.free += 1

    def _repaired(self) -> None:
        self._fleet.away -= 1
        self._fleet.free += 1
        self._allot()

    # ---- recovery -----------------------------------------------------------------------------------------

    def _go(self, job: Job, way: Way) -> None:
        """Carry out what the policies decided."""
        main = job is self._main
        if way.back is not None:
            job.go_back(job.saved_s if way.back == "saved" or job.every_s is None else 0.0)
            job.stateful = False
            self.tally.restarts += main
        if way.members is None:
            job.waiting = True
            return
        entered = max(0, way.members - job.members)
        job.ready -= entered
        job.ready += max(0, job.members - way.members)
        job.members = way.members
        job.waiting = False
        job.speed = self._speed(job)
        job.halt(self._drawn(way.stages), self.scenario.convention if not self.scenario.in_place else RESTART)
        if self.rules.unsettled(job.members):
            members = job.members
            self._at(self.now_s + SETTLE_S, lambda: self._settle(job, members))

    def _drawn(self, stages: Stages) -> Stages:
        """The stages, longer or shorter by chance where the downtime has a shape."""
        if self.scenario.downtime_shape == "fixed" or self.scenario.in_place:
            return stages
        factor = self._downtimes.draw(self.source) / (self._downtimes.mean_s or 1.0)
        return [(name, seconds * factor) for name, seconds in stages]

    def _settle(self, job: Job, members: int) -> None:
        """No newcomer came: members beyond an allowed size stand by."""
        if job.members == members and job.training and not job.ready:
            leaving = self.rules.leaving(members, job.target, SETTLE_S)
            self._go(job, Way(members - leaving, [("regroup", self.scenario.timing.regroup_s)], None, ""))

    def _come(self, job: Job, instances: int) -> None:
        """Instances that started for a job arrive."""
        job.coming += instances
        for _ in range(instances):
            self._at(self.now_s + self.scenario.timing.join_s, lambda: self._came(job))

    def _came(self, job: Job) -> None:
        if job not in self._jobs or not job.coming:
            return  # it failed on its way, or the job is over
        job.coming -= 1
        job.ready += 1
        if not job.started:
            self._begin(job)
        elif not job.stop:
            self._admit(job)

    def _begin(self, job: Job) -> None:
        size = self.rules.begin(job.ready, job.target) if job is self._main else job.ready // job.target * job.target
        if size:
            job.started, job.members, job.ready = True, size, job.ready - size
            job.speed = self._speed(job)

    def _admit(self, job: Job) -> None:
        """Ready newcomers join where there is room."""
        if not job.ready or (not job.waiting and job.members >= job.target):
            return
        way = self.rules.entry(job.members if job.stateful else 0, job.ready, job.target)
        if way.members is not None and (way.members > job.members or job.waiting):
            self._go(job, way)
            self._say("membership", f"{way.members} of {job.target} members: {way.reason}")

    def _speed(self, job: Job) -> float:
        return self.rules.speed(job.members) if job is self._main else job.members / job.target

    def _review(self) -> None:
        """Ask `policy.interval` how often the job saves: at every failure, and seldom while there is none."""
        main = self._main
        main.every_s = self.rules.interval(self.failures, max(self.now_s, 1.0))
        if not self.failures and self.now_s < self.scenario.limit_s and main.every_s is not None:
            at_s, self._reviewed_s = self._reviewed_s, 2 * self._reviewed_s
            if at_s < 1e12:
                self._at(at_s, self._look_again)

    def _look_again(self) -> None:
        if not self.failures:
            self._review()

    # ---- instances ----------------------------------------------------------------------------------------

    def _allot(self) -> None:
        """Give free instances to jobs, until the policy has nothing more to give."""
        for _ in range(len(self._jobs) + 3):
            fleet = self._fleet
            grants = self.rules.allot([job.claim() for job in self._jobs], fleet.free, fleet.total, fleet.standby)
            moved = False
            for grant in grants:
                job = next(job for job in self._jobs if job.name == grant.job_id)
                if not grant.possible:
                    raise SpecError(f"{job.name} needs more instances than the cluster has")
                moved |= self._granted(job, len(grant.start), grant.target)
            if not moved:
                return

    def _granted(self, job: Job, instances: int, target: int) -> bool:
        fleet = self._fleet
        fleet.free -= instances
        if instances and self.now_s == 0:
            job.ready += instances
            self._begin(job)
        elif instances:
            self._come(job, instances)
        if not job.started or target == job.target:
            return bool(instances)
        job.target = target
        if job.members > target:
            leaving = self.rules.leaving(job.members, target)
            job.members -= leaving
            fleet.free += leaving
            job.speed = self._speed(job)
            job.halt([*((halt.stage, halt.left_s) for halt in job.stop), ("regroup", self.scenario.timing.regroup_s)])
        elif not job.stop:
            self._admit(job)
        return True

    def _arrive(self, rival: Rival) -> None:
        name = f"rival-{next(self._order)}"
        job = Job(name, rival.instances, rival.work_s, rival.priority, self.now_s)
        self._jobs.append(job)
        self._allot()

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _say(self, policy: str, reason: str) -> None:
        if len(self.tally.said) < REPORTED:
            self.tally.said.append((self.now_s, policy, reason))

    def _settled(self) -> Tally:
        main, tally = self._main, self.tally
        tally.wall_s, tally.useful_s = self.now_s, main.position_s
        tally.finished = main.done
        tally.interval_s = main.every_s
        tally.stages = {name: seconds for name, seconds in main.stages.items() if seconds > EPSILON_S}
        return tally


def simulate(scenario: Scenario, seed: int = 0, repetitions: int = 20) -> Outcome:
    """Run a scenario ``repetitions`` times, each from its own seed, and summarise. Raises SpecError."""
    if not 1 <= repetitions <= 10_000:
        raise SpecError(f"{repetitions} repetitions; expected 1 to 10000")
    tallies = [Simulation(scenario, random.Random(f"{seed}-{number}")).run() for number in range(repetitions)]
    return summarise(scenario, tallies, seed)
