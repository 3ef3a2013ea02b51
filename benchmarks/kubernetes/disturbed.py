"""A job on both nodes whose pods are deleted, whose nodes lose power, and whose elastic pod is preempted."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.kubernetes.rig import BASE, CPU, OURS, SPARE, URGENT, Part, Rig
from benchmarks.slurm.rig import end
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import bar, row
from jupyter_hyperpod.bench.stalls import Commit, measure, steady, undisturbed_s

DELETED_LIMIT_S, CUT_LIMIT_S, GROWN_LIMIT_S, REQUESTS_LIMIT = 0.15, 2.0, 10.0, 1.0
PAUSE_LIMIT_S = 0.3  # a fault comes anywhere in a step
OVER_S = 240.0


def standstill(commits: Sequence[Commit], asked_s: float) -> float | None:
    """The longest time between two commits, minus one step, from a notice until a group without the member has
    committed; None while that is not known. Pure.

    A pod that is deleted is told so, and its job goes on with it to the end of a step.
    """
    before = [commit for commit in commits if commit.time_s <= asked_s]
    generation = max(commit.generation for commit in before)
    anew = [commit.time_s for commit in commits if commit.generation > generation]
    if not anew:
        return None
    times = [commit.time_s for commit in commits if before[-1].time_s <= commit.time_s <= min(anew)]
    return max(later - earlier for earlier, later in pairwise(sorted(times))) - undisturbed_s(before)


def measure_losses(rig: Rig, deletions: int, cuts: int, calm_s: float, ended: list[Observer]) -> Part:
    """Look at a job for ``calm_s``; then delete one pod of two, or cut one node's power, again and again.

    Add the job to those that have ``ended``, to be compared.
    """
    watch = rig.train("losses", resources=f"cpu={CPU}")
    watch.until(lambda: steady(watch.commits(), 2), OVER_S)
    rate, watches = rig.asked_per_s(calm_s)
    progress(f"one job trains: {rate:.2f} requests/s beside {watches} watches")
    found: dict[str, list[float]] = {name: [] for name in ("step", "deleted", "replaced", "cut", "back")}
    rng = random.Random(0)
    for number in range(deletions + cuts):
        watch.until(lambda: steady(watch.commits(), 2), OVER_S)
        found["step"].append(undisturbed_s(watch.commits()))
        time.sleep(rng.random() * PAUSE_LIMIT_S)
        node = rig.on_nodes(watch)[number % 2]
        if number < deletions:
            _delete(rig, watch, node, found)
        else:
            _cut(rig, watch, node, found)
    watch.until(lambda: steady(watch.commits(), 2), OVER_S)
    spare = sum(len(pods) for pods in rig.pods(watch.job_id).values()) - 2
    end(watch)
    ended.append(watch)
    rows = [row(OURS, "one job trains on two nodes", "requests beside watches", "1/s", [rate])]
    bars = [bar("requests_per_s", rate, REQUESTS_LIMIT), bar("pods_that_nobody_needs", spare, 0)]
    for name, case, metric in (
        ("step", "one job trains on two nodes", "undisturbed step"),
        ("deleted", "a pod is deleted", "longest time between two commits, minus one step"),
        ("replaced", "a pod is deleted", "to the first step on two nodes"),
        ("cut", "a node loses power", "to the survivor's next commit, minus one step"),
        ("back", "a node loses power and is ready again", "to the first step on two nodes"),
    ):
        rows += [row(OURS, case, metric, "s", found[name])] if found[name] else []
    if deletions:
        bars.append(bar("pod_deleted_stall_p50_s", statistics.median(found["deleted"]), DELETED_LIMIT_S))
    if cuts:
        bars.append(bar("node_lost_stall_p50_s", statistics.median(found["cut"]), CUT_LIMIT_S))
        bars.append(bar("node_back_grown_s", max(found["back"]), GROWN_LIMIT_S))
    return rows, bars


def _delete(rig: Rig, watch: Observer, node: str, found: dict[str, list[float]]) -> None:
    asked_s = rig.delete(rig.pods(watch.job_id)[node][0])
    watch.until(lambda: standstill(watch.commits(), asked_s) is not None, OVER_S)
    pause_s = standstill(watch.commits(), asked_s) or 0.0
    whole_s = _until_two(watch, watch.commits()[-1].time_s)
    found["deleted"].append(pause_s)
    found["replaced"].append(whole_s - asked_s)
    progress(f"pod on {node} deleted: stall {pause_s:.3f} s, whole after {whole_s - asked_s:.1f} s")


def _cut(rig: Rig, watch: Observer, node: str, found: dict[str, list[float]]) -> None:
    cut_s = time.time()
    rig.bed.power_cut(node)
    watch.until(lambda: bool(_shrunk(watch, cut_s)), OVER_S)
    on_s = time.time()
    rig.bed.power_on(node)
    ready_s = rig.until_ready(node, on_s)
    whole_s = _until_two(watch, _shrunk(watch, cut_s)[0].time_s)
    stall = measure(watch.commits(), cut_s, 2)
    assert stall is not None
    found["cut"].append(stall.regained_s)
    found["back"].append(whole_s - ready_s)
    progress(f"{node} without power: stall {stall.regained_s:.3f} s, whole {whole_s - ready_s:.1f} s after it is back")


def _shrunk(watch: Observer, since_s: float) -> list[Commit]:
    return [commit for commit in watch.commits() if commit.time_s > since_s and commit.world_size == 1]


def _until_two(watch: Observer, since_s: float) -> float:
    """When the first step after that was committed by two members."""

    def seen() -> list[float]:
        return [one.time_s for one in watch.commits() if one.time_s > since_s and one.world_size == 2]

    watch.until(lambda: bool(seen()), OVER_S)
    return min(seen())


def measure_evictions(rig: Rig, count: int, ended: list[Observer]) -> Part:
    """A pod of a higher class takes the node of the job's elastic pod, and leaves it again. See `measure_losses`."""
    watch = rig.train("evictions", resources=f"cpu={CPU}", priority_class=BASE, elastic_priority_class=SPARE)
    left, grown = [], []
    for number in range(count):
        watch.until(lambda: steady(watch.commits(), 2), OVER_S)
        asked_s = time.time()
        rig.pod(f"urgent-{number}", "sleep 3600", CPU, priorityClassName=URGENT)
        watch.until(lambda asked_s=asked_s: standstill(watch.commits(), asked_s) is not None, OVER_S)  # type: ignore[misc]
        left.append(standstill(watch.commits(), asked_s) or 0.0)
        rig.until_runs(f"urgent-{number}")
        freed_s = rig.delete(f"urgent-{number}")
        grown.append(_until_two(watch, freed_s) - freed_s)
        progress(f"preempted: stall {left[-1]:.3f} s; grown {grown[-1]:.1f} s after the node was given back")
    end(watch)
    ended.append(watch)
    case = "the elastic pod is preempted"
    rows = [
        row(OURS, case, "longest time between two commits, minus one step", "s", left),
        row(OURS, case, "node given back to the first step on two nodes", "s", grown),
    ]
    incidents = len(watch.view["incidents"])
    bars = [bar("eviction_incidents", incidents, 0)]
    return rows, [*bars, bar("capacity_back_grown_s", max(grown), GROWN_LIMIT_S)]
