"""A member of four is killed or stopped while 100 MB of training state is at work: how long does training stand still,
and how long until it goes on with as many members as before? Ours, and the systems people use today.

Every arm trains the same model on the same data with the same micro-batches. Arms take turns, one life at a time: a
life begins with fresh processes (ours: a fresh job on a warm cluster) and ends after its faults.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rivals.environments import NotInstalled
from benchmarks.rivals.systems import Maker, Rival, makers

from ..control import jobs
from ..core.errors import ClusterError
from ..storage.store import Store
from . import partition
from .arms import Arm, Ours, rotation, scratch
from .laboratory import LANGUAGE_MODEL, laboratory, language_model_env, progress, submit, wait_for_idle
from .report import bar, not_run, report, row
from .stalls import Stall, measure, percentile, steady, undisturbed_s

OURS = "jupyter_hyperpod"
TORCHRUN, TORCHFT_TUNED = "torchrun", "torchft-nightly, tuned"
FAULTS = {"kill": "SIGKILL", "hang": "SIGSTOP"}
PERMIT_ALL = 1_000_000
START_TIMEOUT_S, SETTLE_TIMEOUT_S = 120.0, 90.0
SEED = 0
SHORTEST_S = 0.001  # a stall may be shorter than the scatter of a step: ratios stay finite
LIMITS = {
    "kill_stall_p50_s": 0.150,
    "kill_stall_p99_s": 1.0,
    "hang_stall_p50_s": 2.0,
    "spare_full_strength_s": 1.0,
}


@dataclass
class Result:
    """Of one arm: stalls by fault, and why it could not go on."""

    name: str
    stalls: dict[str, list[Stall]] = field(default_factory=lambda: {fault: [] for fault in FAULTS})
    failures: dict[str, str] = field(default_factory=dict)


def run(
    runs: int = 2,
    nodes: int = 4,
    peers: str = "none",
    kills: int = 4,
    hangs: int = 2,
    partitions: int = 3,
    every: int = 10,
) -> dict[str, Any]:
    """``runs`` rounds; in each, our job meets ``kills`` kills and ``hangs`` hangs, every other system one of each.

    Then our members are cut off ``partitions`` times, in networks of their own, which needs root. ``every`` is the
    number of steps between two checkpoints of the systems that need them.
    """
    faults = ["kill"] * kills + ["hang"] * hangs
    rng = random.Random(SEED)
    rivals = makers(peers, every)
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        store = stack.enter_context(laboratory(nodes, spares=1))
        environment = language_model_env(store, steps=PERMIT_ALL)
        results = {name: Result(name) for name in (OURS, *rivals)}
        for number, order in enumerate(rotation(list(results), runs)):
            for name in order:
                progress(f"round {number + 1} of {runs}: {name}")
                if name == OURS:
                    _our_life(store, directory, environment, results[name], nodes, faults, rng)
                else:
                    _rival_lives(rivals[name], directory, environment, results[name], nodes, rng)
    rows = [line for result in results.values() for line in _rows(result, nodes)]
    bars = _bars(results)
    if partitions:
        cut = partition.run(partitions, nodes)
        rows, bars = [*rows, *cut["rows"]], [*bars, *cut["bars"]]
    return report("recovery", rows, bars)


def _our_life(
    store: Store,
    directory: Path,
    environment: Mapping[str, str],
    result: Result,
    nodes: int,
    faults: list[str],
    rng: random.Random,
) -> None:
    arm = Ours(directory)
    fields = {"name": "recovery", "nodes": nodes, "spares": 1, "env": environment}
    arm.watch = watch = submit(store, LANGUAGE_MODEL.read_text(), fields)
    for number, fault in enumerate(faults):
        arm.until(lambda: watch.spare_is_ready() and steady(arm.commits(), nodes), SETTLE_TIMEOUT_S)
        victim = watch.view["members"][1 + number % (nodes - 1)]
        aim = {"node": victim["node"]} if fault == "kill" else {"rank": victim["rank"]}
        count = len(watch.of_kind("fault.injected"))
        _some_way_into_a_step(arm, rng)
        jobs.fault(store, watch.job_id, fault, **aim)
        watch.until(lambda count=count: len(watch.of_kind("fault.injected")) > count, SETTLE_TIMEOUT_S)  # type: ignore[misc]
        _note(result, fault, _stall(arm, watch.of_kind("fault.injected")[-1].time_s, nodes))
    jobs.stop(store, watch.job_id)
    watch.until_ended()
    wait_for_idle(store)


def _rival_lives(
    make: Maker,
    directory: Path,
    environment: Mapping[str, str],
    result: Result,
    nodes: int,
    rng: random.Random,
) -> None:
    """One kill and one hang, in one life where the system gets back to full strength by itself, else in two."""
    todo = [fault for fault in FAULTS if fault not in result.failures]
    try:
        while todo:
            with _living(make, directory, environment, nodes) as arm:
                result.name = arm.name
                while todo and _struck(arm, todo.pop(0), result, nodes, rng) and arm.lives_on:
                    pass
    except (NotInstalled, ClusterError) as error:
        for fault in FAULTS:
            result.failures.setdefault(fault, str(error))
        progress(f"{result.name} does not run: {error}")


def _struck(arm: Rival, fault: str, result: Result, nodes: int, rng: random.Random) -> bool:
    """Disturb it once; False where it did not recover, so that it has to be started again."""
    arm.until(lambda: steady(arm.commits(), nodes), START_TIMEOUT_S)
    # anywhere between two checkpoints, and never before the first
    arm.until_step(max(arm.every, *(commit.step for commit in arm.commits())) + rng.randrange(arm.every))
    _some_way_into_a_step(arm, rng)
    fault_s = time.time()
    arm.strike(fault)
    try:
        _note(result, fault, _stall(arm, fault_s, nodes, arm.noticed))
    except ClusterError as error:
        result.failures[fault] = str(error)
        progress(f"{arm.name} does not recover from a {fault}: {error}")
        return False
    return True


def _some_way_into_a_step(arm: Arm, rng: random.Random) -> None:
    """Faults come at any moment of a step, not at the one where the observer happens to look."""
    time.sleep(rng.random() * undisturbed_s(arm.commits()))


@contextmanager
def _living(make: Maker, directory: Path, environment: Mapping[str, str], nodes: int) -> Iterator[Rival]:
    arm = make(directory, environment, nodes)
    try:
        arm.permit(PERMIT_ALL)
        arm.begin()
        yield arm
    finally:
        arm.stop()


def _stall(arm: Arm, fault_s: float, nodes: int, noticed: Callable[[], None] | None = None) -> Stall:
    """Wait until it is at full strength again. Raises ClusterError where that does not happen."""
    generation = max(commit.generation for commit in arm.commits() if commit.time_s <= fault_s)
    arm.until(lambda: any(commit.generation > generation for commit in arm.commits()), SETTLE_TIMEOUT_S)
    if noticed is not None:
        noticed()
    arm.until(lambda: measure(arm.commits(), fault_s, nodes) is not None, SETTLE_TIMEOUT_S)
    stall = measure(arm.commits(), fault_s, nodes)
    assert stall is not None
    return stall


def _note(result: Result, fault: str, stall: Stall) -> None:
    result.stalls[fault].append(stall)
    progress(
        f"  {fault}: stall {stall.stall_s * 1000:.0f} ms, new ground after {stall.regained_s * 1000:.0f} ms "
        f"({stall.repeated} steps again), full strength {stall.strength_s * 1000:.0f} ms"
    )


def _rows(result: Result, nodes: int) -> list[dict[str, Any]]:
    rows = []
    for fault, signal in FAULTS.items():
        case = f"{signal} of one of {nodes} members"
        if stalls := result.stalls[fault]:
            rows += [
                row(result.name, case, "undisturbed step", "s", [s.step_s for s in stalls]),
                row(
                    result.name,
                    case,
                    "fault to the survivors' next commit, minus one step",
                    "s",
                    [s.stall_s for s in stalls],
                ),
                row(
                    result.name,
                    case,
                    "fault to the first new step, minus one step",
                    "s",
                    [s.regained_s for s in stalls],
                ),
                row(result.name, case, "steps computed again", "steps", [s.repeated for s in stalls]),
                row(result.name, case, "fault to the first step at full strength", "s", [s.strength_s for s in stalls]),
            ]
        if fault in result.failures:
            rows.append(not_run(result.name, case, result.failures[fault]))
    return rows


def _bars(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Ours against the limits, and against those of the others that ran."""
    ours = results[OURS].stalls
    kills, hangs = [s.regained_s for s in ours["kill"]], [s.regained_s for s in ours["hang"]]
    values = {}
    if kills:
        values["kill_stall_p50_s"] = statistics.median(kills)
        values["kill_stall_p99_s"] = percentile(kills, 0.99)
        values["spare_full_strength_s"] = statistics.median(s.strength_s for s in ours["kill"])
    if hangs:
        values["hang_stall_p50_s"] = statistics.median(hangs)
    bars = [bar(name, values[name], limit) for name, limit in LIMITS.items() if name in values]
    if kills:
        downtime_s = max(values["kill_stall_p50_s"], SHORTEST_S)
        if theirs := _downtime_s(results, TORCHRUN):
            bars.append(bar("downtime_reduction_vs_torchrun", 1 - downtime_s / theirs, at_least=0.95))
        if theirs := _downtime_s(results, TORCHFT_TUNED):
            bars.append(bar("times_less_than_torchft_tuned", theirs / downtime_s, at_least=5.0))
    return bars


def _downtime_s(results: Mapping[str, Result], name: str) -> float | None:
    """Median time without progress after a kill: steps that were committed before do not count as progress."""
    stalls = results[name].stalls["kill"] if name in results else []
    return statistics.median(s.regained_s for s in stalls) if stalls else None
