"""The event simulation: instances fail, a job recovers by the real policies, simulated time passes.

Failures of instances are a superposition of Poisson processes, which is one Poisson process: it has no memory, so its
next event can be drawn again whenever something changes. A working instance therefore needs no record, and a hundred
thousand of them cost as much as ten. Repairs and starts are in a heap.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, count

from ..core.errors import SpecError
from ..policy.membership import SETTLE_S
from . import causes
from .goodput import PRODUCTIVE, SERIAL
from .job import EPSILON_S, Job
from .outcome import Outcome, Tally, summarise
from .rules import SAVED, Rules, Way
from .scenario import Scenario

REPORTED = 12  # how many sentences of the policies are kept, from the first
REVIEWED_S = 3600.0  # first look at the checkpoint interval while nothing has failed


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
        size = scenario.cluster.instances
        self.rules = Rules(scenario)
        self._job = Job(
            size, scenario.spec.start_minimum, scenario.work_s, scenario.spares, scenario.checkpoints.cost_s
        )
        self._total = self._free = size + scenario.spares
        self._repairing = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._rate = scenario.cluster.rate / 3600.0
        self._bounds = list(accumulate(cause.count for cause in scenario.mix))
        self._schedule = sorted(scenario.faults, key=lambda fault: fault.after_s, reverse=True)
        self._reviewed_s = REVIEWED_S

    def run(self) -> Tally:
        """Simulate until the job's work is done, or the limit is reached."""
        job, tally = self._job, self.tally
        self._allot()
        self._review()
        while not job.done and self.now_s < self.scenario.limit_s:
            self._step()
        tally.wall_s, tally.useful_s = self.now_s, job.position_s
        tally.finished = job.done
        tally.stages = {name: seconds for name, seconds in job.stages.items() if seconds > EPSILON_S}
        return tally

    def _step(self) -> None:
        """Go to whatever comes first."""
        job = self._job
        fails = self._failing()
        failure_s = self.now_s + self.source.expovariate(fails * self._rate) if fails and self._rate else math.inf
        mark_s = min(job.work_s, self._schedule[-1].after_s) if self._schedule else job.work_s
        next_s = min(failure_s, self.now_s + job.next_change_s(mark_s), self.scenario.limit_s)
        if self._events and self._events[0][0] <= next_s:
            at_s, _, act = heapq.heappop(self._events)
            self._advance(at_s)
            act()
            return
        self._advance(next_s)
        if next_s == failure_s:
            self._fail()
        elif job.started and not job.stop:
            self._changed()

    def _advance(self, to_s: float) -> None:
        self._job.advance(to_s - self.now_s)
        self.now_s = to_s

    def _changed(self) -> None:
        """The job has reached the end of its stages, a scheduled fault, or the end of its work."""
        job = self._job
        if self._schedule and self._schedule[-1].after_s <= job.position_s + EPSILON_S:
            kind = self._schedule.pop().kind
            self._lose(causes.Cause(kind, 1, kind, "monitor"))
        else:
            job.stateful = True
            self._admit()

    # ---- failures -----------------------------------------------------------------------------------------

    def _exposed(self) -> int:
        """Members that can fail now."""
        return 0 if self._job.stop and self.scenario.convention == PRODUCTIVE else self._job.members

    def _failing(self) -> int:
        """Instances that can fail now."""
        return self._free + self._job.ready + self._job.coming + self._exposed()

    def _fail(self) -> None:
        """One of the instances that can fail fails."""
        job, exposed = self._job, self._exposed()
        cause = self.scenario.mix[bisect(self._bounds, self.source.random() * self._bounds[-1])]
        victim = self.source.random() * self._failing()
        if victim < exposed:
            self._lose(cause)
        elif victim - exposed < job.ready + job.coming:
            job.ready, job.coming = (job.ready - 1, job.coming) if job.ready else (0, job.coming - 1)
            self._away(cause, held=True)
        elif self._free:
            self._free -= 1
            self._away(cause, held=False)

    def _lose(self, cause: causes.Cause) -> None:
        """A member of the job fails."""
        scenario, job = self.scenario, self._job
        self.failures += 1
        self.tally.incidents[cause.name] += 1
        lost = self.rules.lost_with(cause, job.members)
        if cause.kind == causes.PREEMPTED and not lost:
            lost = 1  # no member could take over its state in time
        everybody = lost == job.members
        gone = 1 if everybody else lost
        settled = job.training
        job.members -= gone
        if cause.kind == causes.PROGRAM or (scenario.repair_s is None and not scenario.in_place):
            job.ready += gone  # its replacement is there when the job starts again
        else:
            for _ in range(gone):
                self._away(cause, held=True)
        step = math.floor(job.saved_s / scenario.timing.step_s)
        stateful = job.stateful and not everybody
        way = self.rules.after_loss(cause, job.members, job.ready, job.target, settled, stateful, step)
        self._go(way)
        self._say("recovery", f"{cause.name}: {way.reason}")
        self._review()

    def _away(self, cause: causes.Cause, held: bool) -> None:
        """An instance, which the job ``held`` or not, is rebooted or replaced, or only its process restarts."""
        scenario = self.scenario
        action = "watch"
        if scenario.repair_s is not None:
            node = self.source.randrange(self._total)
            action = self.rules.remedy(cause, node, self.now_s, self._repairing, self._total)
        if action != "watch":
            assert scenario.repair_s is not None
            self._repairing += 1
            mean_s = scenario.reboot_s if action == "reboot" else scenario.repair_s
            took_s = self.source.expovariate(1 / mean_s) if mean_s else 0.0
            self._at(self.now_s + took_s, self._repaired)
        elif held:
            self._come(1)
        else:
            self._free += 1

    def _repaired(self) -> None:
        self._repairing -= 1
        self._free += 1
        self._allot()

    # ---- recovery -----------------------------------------------------------------------------------------

    def _go(self, way: Way) -> None:
        """Carry out what the policies decided."""
        scenario, job = self.scenario, self._job
        if way.back is not None:
            job.go_back(job.saved_s if way.back == SAVED or job.every_s is None else 0.0)
            job.stateful = False
            self.tally.restarts += 1
        if way.members is None:
            job.waiting = True
            return
        job.ready += job.members - way.members
        job.members = way.members
        job.waiting = False
        job.speed = self.rules.speed(job.members)
        job.halt(way.stages, serial=scenario.convention == SERIAL and not scenario.in_place)
        if self.rules.unsettled(job.members):
            members = job.members
            self._at(self.now_s + SETTLE_S, lambda: self._settle(members))

    def _settle(self, members: int) -> None:
        """No newcomer came: members beyond an allowed size stand by."""
        job = self._job
        if job.members == members and job.training and not job.ready:
            leaving = self.rules.leaving(members, job.target, SETTLE_S)
            self._go(Way(members - leaving, [("regroup", self.scenario.timing.regroup_s)], None, ""))

    def _come(self, instances: int) -> None:
        """Instances that started for the job arrive."""
        self._job.coming += instances
        for _ in range(instances):
            self._at(self.now_s + self.scenario.timing.join_s, self._came)

    def _came(self) -> None:
        job = self._job
        if not job.coming:
            return  # it failed on its way
        job.coming -= 1
        job.ready += 1
        if not job.started:
            self._begin()
        elif not job.stop:
            self._admit()

    def _begin(self) -> None:
        job = self._job
        if size := self.rules.begin(job.ready, job.target):
            job.started, job.members, job.ready = True, size, job.ready - size
            job.speed = self.rules.speed(size)

    def _admit(self) -> None:
        """Ready newcomers join where there is room."""
        job = self._job
        if not job.ready or (not job.waiting and job.members >= job.target):
            return
        way = self.rules.entry(job.members if job.stateful else 0, job.ready, job.target)
        if way.members is not None and (way.members > job.members or job.waiting):
            self._go(way)
            self._say("membership", f"{way.members} of {job.target} members: {way.reason}")

    def _review(self) -> None:
        """Ask `policy.interval` how often the job saves: at every failure, and seldom while there is none."""
        every_s = self._job.every_s = self.rules.interval(self.failures, max(self.now_s, 1.0))
        if not self.failures and self.now_s < self.scenario.limit_s and every_s is not None:
            at_s, self._reviewed_s = self._reviewed_s, 2 * self._reviewed_s
            if at_s < 1e12:
                self._at(at_s, self._look_again)

    def _look_again(self) -> None:
        if not self.failures:
            self._review()

    def _allot(self) -> None:
        """Give free instances to the job, until the policy has nothing more to give."""
        while instances := self.rules.allotted(self._job.claim(), self._free):
            self._free -= instances
            if self.now_s == 0:
                self._job.ready += instances
                self._begin()
            else:
                self._come(instances)

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _say(self, policy: str, reason: str) -> None:
        if len(self.tally.said) < REPORTED:
            self.tally.said.append((self.now_s, policy, reason))


def simulate(scenario: Scenario, seed: int = 0, repetitions: int = 20) -> Outcome:
    """Run a scenario ``repetitions`` times, each from its own seed, and summarise. Raises SpecError."""
    if not 1 <= repetitions <= 10_000:
        raise SpecError(f"{repetitions} repetitions; expected 1 to 10000")
    tallies = [Simulation(scenario, random.Random(f"{seed}-{number}")).run() for number in range(repetitions)]
    return summarise(scenario, tallies, seed)
