"""Reads a real job's journal and turns what it measured into parameters of a plan and of a simulation."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import SpecError
from ..core.events import Event
from ..core.health import BY_HAND
from ..core.incidents import fold_stages, unnoticed_since_s
from ..core.units import format_duration, plural
from .causes import CORRUPT, HUNG, KILLED, PARTITION, PREEMPTED
from .quantities import HIGHEST_RATE, HOUR_S
from .scenario import Timing

KIND_OF = {
    "process killed": KILLED,
    "process died": KILLED,
    "node lost": KILLED,
    "heartbeat lost": HUNG,
    "process hung": HUNG,
    "process stopped": HUNG,
    "network partition": PARTITION,
    "silent data corruption": CORRUPT,
    "preempted": PREEMPTED,
    "unhealthy node": PREEMPTED,
}
LOG_RULE = "log rule "
FEWEST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """What one job measured. ``stalls``: the cost of a fault by its kind, in seconds, until the lost place is filled
    again.

    ``recoveries``: mean time from a fault to the next commit by its kind, in seconds, detection included, as the job's
    incidents show it; kinds are missing where the journal lacks the time of the fault. ``failures`` of ``instances`` in
    ``observed_s``, ``injected`` of them on purpose. ``saving_s``: how long training stands still for a checkpoint, None
    where none was written. ``goodput``: useful time over the time from the first commit to the last.
    """

    job_id: str
    instances: int
    observed_s: float
    failures: int
    injected: int
    step_s: float
    step_times: dict[int, float]
    stalls: dict[str, float]
    recoveries: dict[str, float]
    regroup_s: float | None
    join_s: float | None
    saving_s: float | None
    goodput: float

    @property
    def rate(self) -> float | None:
        """Failures per instance-hour; None where there was none, or where some were injected."""
        rate = self.failures / (self.instances * self.observed_s / HOUR_S)
        return rate if 0 < rate <= HIGHEST_RATE and not self.injected else None

    def timing(self) -> Timing:
        """The timing of the simulated job; values that this job did not measure keep their assumptions."""
        usual = Timing()
        stalls = statistics.median(self.stalls.values()) if self.stalls else usual.regroup_s
        return Timing(
            self.step_s,
            stalls if self.regroup_s is None else self.regroup_s,
            usual.join_s if self.join_s is None else self.join_s,
            dict(self.stalls),
            dict(self.step_times),
        )

    @property
    def sentence(self) -> str:
        """The measurements as a sentence."""
        stalls, recoveries = _by_kind(self.stalls), _by_kind(self.recoveries)
        rate = "too few or provoked failures for a rate" if self.rate is None else f"{100 * self.rate:.3g} %/h"
        return (
            f"{self.job_id}: {plural(self.failures, 'failure')} of {plural(self.instances, 'instance')} in "
            f"{format_duration(self.observed_s)} ({rate}), a step {format_duration(self.step_s)}, "
            f"fault to next commit: {recoveries or 'not told'}; "
            f"a fault costs until its place is taken again: {stalls or 'none seen'}; goodput {100 * self.goodput:.1f} %"
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        names = ("job_id", "instances", "observed_s", "failures", "injected", "step_s", "regroup_s", "join_s")
        found = {name: getattr(self, name) for name in (*names, "saving_s", "goodput", "rate")}
        times = {str(members): seconds for members, seconds in self.step_times.items()}
        return found | {"stalls_s": self.stalls, "recoveries_s": self.recoveries, "step_times_s": times}


@dataclass(frozen=True, slots=True)
class _Commits:
    """Committed steps in order: time, number, and members."""

    times: list[float]
    steps: list[int]
    worlds: list[int]

    def gap(self, time_s: float) -> int | None:
        """The number of the gap between two commits in which a moment lies."""
        at = bisect_right(self.times, time_s)
        return at if 0 < at < len(self.times) else None

    def seconds(self, gap: int) -> float:
        """How long a gap is."""
        return self.times[gap] - self.times[gap - 1]


def measure(job_id: str, events: Sequence[Event]) -> Measured:
    """Read one job's events. Raises SpecError where it has not trained long enough."""
    commits = _commits(events)
    if len(commits.times) < FEWEST_STEPS:
        raise SpecError(
            f"{job_id} has committed {len(commits.times)} steps; calibrating needs at least {FEWEST_STEPS}: "
            "name a job that trained with hp.Session"
        )
    windows = _windows(commits, events)
    disturbed = {gap for window in windows for gap in window.gaps}
    formed = (event.time_s for event in events if event.kind == "generation.formed")
    changed = {gap for at_s in formed if (gap := commits.gap(at_s)) is not None} - disturbed
    step_times = _step_times(commits, disturbed | changed)
    full = max(step_times)
    step_s = step_times[full]
    regroups = [commits.seconds(gap) - step_times.get(commits.worlds[gap], step_s) for gap in sorted(changed)]
    saved = [event.data["paused_s"] for event in events if event.kind == "checkpoint.saved"]
    wall_s = commits.times[-1] - commits.times[0]
    useful_s = (commits.steps[-1] - commits.steps[0]) * step_s
    return Measured(
        job_id,
        instances=full,
        observed_s=wall_s,
        failures=len(windows),
        injected=sum(event.kind == "fault.injected" for event in events),
        step_s=step_s,
        step_times=step_times,
        stalls=_stalls(commits, windows, step_times, step_s),
        recoveries=_recoveries(events),
        regroup_s=max(0.0, statistics.median(regroups)) if regroups else None,
        join_s=_join_s(events),
        saving_s=statistics.median(saved) if saved else None,
        goodput=min(1.0, useful_s / wall_s),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """One fault: its kind, and the gaps between commits from the fault until its place is taken again."""

    kind: str
    gaps: range


def _commits(events: Sequence[Event]) -> _Commits:
    """The first record of every step."""
    found = _Commits([], [], [])
    for event in sorted((e for e in events if e.kind == "step.committed"), key=lambda e: e.time_s):
        if not found.steps or event.data["step"] > found.steps[-1]:
            found.times.append(event.time_s)
            found.steps.append(event.data["step"])
            found.worlds.append(event.data["world_size"])
    return found


def kind_of(cause: str) -> str:
    """The kind of failure behind an incident's cause; "" for no failure, such as a person's request."""
    if cause.startswith(LOG_RULE):
        return HUNG
    found_by_probe = cause[:1].isupper() and cause != BY_HAND  # probes name faults so; that node stays alive
    return PREEMPTED if found_by_probe else KIND_OF.get(cause, "")


def _windows(commits: _Commits, events: Sequence[Event]) -> list[_Window]:
    """Every incident that cost a member. It ends after its last stage, once the node's next worker is ready."""
    first: dict[str, Event] = {}
    last: dict[str, float] = {}
    for event in events:
        if event.kind == "incident.stage" and kind_of(event.data["cause"]):
            first.setdefault(event.data["incident"], event)
            last[event.data["incident"]] = event.time_s
    found = []
    for name, event in first.items():
        ready = _ready(events, event.data["node"], event.time_s)
        since_s = unnoticed_since_s(event)
        begin = commits.gap(event.time_s if since_s is None else since_s)
        end = commits.gap(max(last[name], event.time_s if ready is None else ready)) or len(commits.times) - 1
        if begin is not None:
            found.append(_Window(kind_of(event.data["cause"]), range(begin, max(begin, end) + 1)))
    return found


def _ready(events: Sequence[Event], node: str, after_s: float) -> float | None:
    """When the next worker of a node was ready."""
    found = (e.time_s for e in events if e.kind == "member.ready" and e.data["node"] == node and e.time_s > after_s)
    return min(found, default=None)


def _step_times(commits: _Commits, disturbed: set[int]) -> dict[int, float]:
    """Mean time of an undisturbed step by the number of members."""
    quiet = defaultdict(list)
    for gap in range(1, len(commits.times)):
        if gap not in disturbed:
            steps = commits.steps[gap] - commits.steps[gap - 1]  # of old steps, not each is kept
            quiet[commits.worlds[gap]].append(commits.seconds(gap) / steps)
    found = {world: statistics.fmean(gaps) for world, gaps in sorted(quiet.items()) if len(gaps) > 1}
    if not found:
        raise SpecError("no two undisturbed steps were seen; calibrating needs a calmer job")
    return found


def _stalls(
    commits: _Commits, windows: Sequence[_Window], step_times: Mapping[int, float], step_s: float
) -> dict[str, float]:
    """Mean cost of a fault, by kind; overlapping windows share their time."""
    sharing = Counter(gap for window in windows for gap in window.gaps)
    costs = defaultdict(list)
    for window in windows:
        lost = (
            (commits.seconds(gap) - step_times.get(commits.worlds[gap], step_s)) / sharing[gap] for gap in window.gaps
        )
        costs[window.kind].append(sum(lost))
    return {kind: max(0.0, statistics.fmean(found)) for kind, found in sorted(costs.items())}


def _recoveries(events: Sequence[Event]) -> dict[str, float]:
    """Mean recovery time of the job's incidents, by kind."""
    found = defaultdict(list)
    for incident in fold_stages(events):
        kind = kind_of(incident["cause"])
        if kind and incident["recovery_s"] is not None and incident["detection_s"] is not None:
            found[kind].append(incident["recovery_s"])
    return {kind: statistics.fmean(seconds) for kind, seconds in sorted(found.items())}


def _by_kind(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {format_duration(took_s)}" for kind, took_s in seconds.items())


def _join_s(events: Sequence[Event]) -> float | None:
    """Median time from the loss of a worker until the node's next worker is ready."""
    waits = []
    for lost in (e for e in events if e.kind == "member.lost"):
        ready = _ready(events, lost.data["node"], lost.time_s)
        if ready is not None:
            waits.append(ready - lost.time_s)
    return statistics.median(waits) if waits else None
