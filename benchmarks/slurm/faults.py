"""The whole runtime on a real SLURM of four nodes: a worker is killed, a node's power is cut, an urgent job comes.

How long do the survivors stand still, how long until the job is whole again, and what does the scheduler have to bear
when a thousand jobs are followed? Every disturbed run is compared, bit for bit, with an undisturbed one on one node.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.slurm.rig import SETTLE_S, Rig, compare, end, slurm_rig, until_world, worst
from benchmarks.waits import until_each_says_why
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.bench.stalls import Stall, measure, steady
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError
from tests.support.slurm import CONTROLLER, missing

OURS = "jupyter_hyperpod"
UP_LIMIT_S, KILL_LIMIT_S, CUT_LIMIT_S, WHOLE_LIMIT_S, URGENT_LIMIT_S = 15.0, 0.5, 3.0, 30.0, 15.0
QUERIES_LIMIT = 1.0
ENDPOINT = "coordinator.json"  # of a job whose coordinator runs
SUBMIT_ALL_S = 300.0
URGENT_STEPS = 10


@dataclass(frozen=True, slots=True)
class Urgent:
    """Seconds from the urgent job's submission: to its first step, and to the low job's first on fewer nodes; then from
    its end to the low job's first step on all nodes. ``restarted``: survivors whose process was not always the same.
    """

    first_step_s: float
    shrunk_s: float
    grown_s: float
    restarted: int


def run(kills: int = 8, cuts: int = 4, urgents: int = 2, many: int = 1000, seconds: float = 20.0) -> dict[str, Any]:
    """Kill a worker ``kills`` times and cut a node's power ``cuts`` times; preempt ``urgents`` times; then submit
    ``many`` jobs and follow them for ``seconds``. Needs root and SLURM."""
    if reason := missing():
        return report("slurm", [not_run(OURS, "everything", reason)], [])
    with slurm_rig() as rig:
        rows = [row(OURS, "4 nodes in namespaces", "testbed up", "s", [rig.up_s])]
        bars = [bar("testbed_up_s", rig.up_s, UP_LIMIT_S)]
        for part in (
            _faults(rig, kills, cuts) if kills or cuts else ([], []),
            _urgencies(rig, urgents) if urgents else ([], []),
            _many(rig, many, seconds) if many else ([], []),
        ):
            rows, bars = [*rows, *part[0]], [*bars, *part[1]]
    return report("slurm", rows, worst(bars))


Part = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def _faults(rig: Rig, kills: int, cuts: int) -> Part:
    """A job on three of four nodes meets kills and power cuts in turn."""
    rng = random.Random(0)
    watch = rig.train("faults", 3, "1:3", partition="train", elastic_partition="spot")
    found: dict[str, list[Stall]] = {"kill": [], "cut": []}
    for number, kind in enumerate(["kill"] * kills + ["cut"] * cuts):
        watch.until(lambda: steady(watch.commits(), 3), SETTLE_S)
        time.sleep(rng.random() * PAUSE_LIMIT_S)  # anywhere in a step
        victim = watch.view["members"][1 + number % 2]
        began_s = _kill(watch, victim["rank"]) if kind == "kill" else _cut(rig, victim["node"])
        watch.until(lambda began_s=began_s: measure(watch.commits(), began_s, 3) is not None, SETTLE_S)  # type: ignore[misc]
        stall = measure(watch.commits(), began_s, 3)
        assert stall is not None
        found[kind].append(stall)
        progress(f"{kind} {number + 1}: stall {stall.regained_s:.3f} s, whole after {stall.strength_s:.2f} s")
        if kind == "cut":
            rig.bed.power_on(victim["node"])
            rig.bed.in_service(victim["node"])
    end(watch)
    rows = _stall_rows("a worker is killed", found["kill"]) + _stall_rows("a node's power is cut", found["cut"])
    bars = compare(watch)
    if found["kill"]:
        bars.append(bar("kill_stall_p50_s", _median([s.regained_s for s in found["kill"]]), KILL_LIMIT_S))
    if found["cut"]:
        bars.append(bar("power_cut_stall_p50_s", _median([s.regained_s for s in found["cut"]]), CUT_LIMIT_S))
        bars.append(bar("power_cut_whole_s", max(s.strength_s for s in found["cut"]), WHOLE_LIMIT_S))
    return rows, bars


PAUSE_LIMIT_S = 0.3


def _kill(watch: Observer, rank: int) -> float:
    count = len(watch.of_kind("fault.injected"))
    jobs.fault(watch.store, watch.job_id, "kill", rank=rank)
    watch.until(lambda: len(watch.of_kind("fault.injected")) > count, SETTLE_S)
    return watch.of_kind("fault.injected")[-1].time_s


def _cut(rig: Rig, node: str) -> float:
    began_s = time.time()
    rig.bed.power_cut(node)
    return began_s


def _stall_rows(case: str, stalls: Sequence[Stall]) -> list[dict[str, Any]]:
    figures: dict[str, Callable[[Stall], float]] = {
        "undisturbed step": lambda s: s.step_s,
        "fault to the survivors' next commit, minus one step": lambda s: s.regained_s,
        "fault to the first step at full strength": lambda s: s.strength_s,
    }
    return [row(OURS, case, name, "s", list(map(take, stalls))) for name, take in figures.items() if stalls]


def _urgencies(rig: Rig, count: int) -> Part:
    """A job on all four nodes, two of which may be taken back; an urgent one wants two."""
    low = rig.train("low", 4, "2:4", partition="train", elastic_partition="spot")
    found = []
    for number in range(count):
        until_world(low, 4)
        found.append(_urgency(rig, low))
        progress(f"urgent {number + 1}: {found[-1]}")
    end(low)
    case = "an urgent job takes two of four nodes"
    rows = [
        row(OURS, case, "submitted to its first step", "s", [u.first_step_s for u in found]),
        row(OURS, case, "submitted to the low job's first step on fewer nodes", "s", [u.shrunk_s for u in found]),
        row(OURS, case, "its end to the low job's first step on four nodes", "s", [u.grown_s for u in found]),
    ]
    slowest = max(max(u.first_step_s, u.shrunk_s) for u in found)
    bars = [bar("urgent_first_step_s", slowest, URGENT_LIMIT_S), *compare(low)]
    return rows, [*bars, bar("survivors_restarted", sum(u.restarted for u in found), 0)]


def _urgency(rig: Rig, low: Observer) -> Urgent:
    before = {member["member"] for member in low.view["members"]}
    began_s = time.time()
    urgent = rig.train("urgent", 2, steps=URGENT_STEPS, partition="urgent")
    shrunk_s = until_world(low, 2) - began_s
    kept = {member["member"] for member in low.view["members"]}
    view = urgent.until_ended(SETTLE_S)
    if view["state"] != "succeeded":
        raise ClusterError(f"the urgent job {view['state']}: {view['reason']}")
    first_s = min(event.time_s for event in urgent.of_kind("step.committed"))
    ended_s = max(event.time_s for event in urgent.of_kind("job.state"))
    grown_s = until_world(low, 4) - ended_s
    after = {member["member"] for member in low.view["members"]}
    return Urgent(first_s - began_s, shrunk_s, grown_s, len(kept - before) + len(kept - after))


def _many(rig: Rig, many: int, seconds: float) -> Part:
    """``many`` jobs that wait for nodes: what the scheduler is asked while all of them are followed and listed."""
    command = ["srun", "--job-name=blocker", "-p", "urgent", "-N4", "--exclusive", "sleep", "3600"]
    blocker = rig.bed.start(CONTROLLER, command)
    rig.bed.until(lambda: set(rig.bed.states().values()) == {"alloc"}, "all nodes are taken")
    began_s = time.time()
    fields = {"name": "many", "backend": "slurm", "slurm": {"partition": "train"}, "spares": 0}
    for _ in range(many):
        jobs.submit(rig.store, "print('here')", fields)
    accepted_s = time.time() - began_s
    known_s = until_each_says_why(rig.store, many, b'"allocation.changed"', began_s, SUBMIT_ALL_S)
    time.sleep(seconds)
    listing_s = time.time()
    views = jobs.list_jobs(rig.store)
    listed_s = time.time() - listing_s
    released_s = time.time()
    rig.bed.run(CONTROLLER, "scancel", "--name=blocker")
    blocker.wait(SETTLE_S)
    followed_s = _until_one_runs(rig) - released_s
    queries = [at_s for at_s in rig.queries() if at_s >= began_s]
    rate = (len(queries) - 1) / (queries[-1] - queries[0])
    busiest = max(sum(at <= other < at + 10.0 for other in queries) / 10.0 for at in queries)
    rig.bed.run(CONTROLLER, "scancel", "--user=root")
    case = f"{many} jobs that wait"
    rows = [
        row(OURS, case, "queries of the scheduler, from submission on", "1/s", [rate]),
        row(OURS, case, "the same, busiest ten seconds", "1/s", [busiest]),
        row(OURS, case, "submitted", "s", [accepted_s]),
        row(OURS, case, "first submission until SLURM's state of each is known", "s", [known_s]),
        row(OURS, case, "listed", "s", [listed_s]),
        row(OURS, case, "nodes free until the first is seen to run", "s", [followed_s]),
    ]
    bars = [
        bar("queries_per_s", max(rate, busiest), QUERIES_LIMIT),
        bar("jobs_listed", sum("SLURM" in view["reason"] for view in views), at_least=many - 4),
    ]
    return rows, bars


def _until_one_runs(rig: Rig) -> float:
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        if any((rig.store.job(job_id).path / ENDPOINT).exists() for job_id in rig.store.job_ids()):
            return time.time()
        time.sleep(0.05)
    raise ClusterError(f"none of the jobs was seen to run within {SETTLE_S:g} s")


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples)
