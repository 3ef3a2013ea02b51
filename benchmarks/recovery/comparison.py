"""A member of four is killed or stopped: our recovery beside that of the systems people use today.

Every arm trains the same model on the same data with the same micro-batches. Arms take turns, one life at a time: a
life begins with fresh processes (ours: a fresh job on a warm cluster) and ends after its faults.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.arms import rotation, scratch
from benchmarks.recovery import partition
from benchmarks.rivals.environments import NotInstalled
from benchmarks.rivals.systems import Maker, Rival, makers
from jupyter_hyperpod.bench.laboratory import laboratory, language_model_env, progress
from jupyter_hyperpod.bench.recovery import (
    ENDLESS,
    FAULTS,
    OURS,
    SEED,
    Result,
    downtime_s,
    note,
    our_bars,
    our_life,
    rows_of,
    some_way_into_a_step,
    stall_of,
)
from jupyter_hyperpod.bench.report import bar, report
from jupyter_hyperpod.bench.stalls import steady
from jupyter_hyperpod.core.errors import ClusterError

TORCHRUN, TORCHFT_TUNED = "torchrun", "torchft-nightly, tuned"
START_TIMEOUT_S = 120.0
SHORTEST_S = 0.001  # a stall may be shorter than the scatter of a step: ratios stay finite


def run(
    runs: int = 2,
    nodes: int = 4,
    peers: str = "none",
    kills: int = 4,
    hangs: int = 2,
    partitions: int = 3,
    every: int = 10,
    collectives: str = "auto",
) -> dict[str, Any]:
    """``runs`` rounds; in each, our job meets ``kills`` kills and ``hangs`` hangs, every other system one of each.

    Then our members are cut off ``partitions`` times, in networks of their own, which needs root. ``every`` is the
    number of steps between two checkpoints of the systems that need them. ``collectives``: how our members exchange
    gradients, as of ``submit --collectives``; the members that are cut off always use the host's way.
    """
    faults = ["kill"] * kills + ["hang"] * hangs
    rng = random.Random(SEED)
    rivals = makers(peers, every)
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        store = stack.enter_context(laboratory(nodes, spares=1))
        environment = language_model_env(store, steps=ENDLESS)
        results = {name: Result(name) for name in (OURS, *rivals)}
        for number, order in enumerate(rotation(list(results), runs)):
            for name in order:
                progress(f"round {number + 1} of {runs}: {name}")
                if name == OURS:
                    our_life(store, environment, results[name], nodes, faults, rng, collectives)
                else:
                    _rival_lives(rivals[name], directory, environment, results[name], nodes, rng)
    rows = [line for result in results.values() for line in rows_of(result, nodes)]
    bars = [*our_bars(results[OURS]), *_against_others(results)]
    if partitions:
        cut = partition.run(partitions, nodes)
        rows, bars = [*rows, *cut["rows"]], [*bars, *cut["bars"]]
    return report("recovery", rows, bars)


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
    some_way_into_a_step(arm, rng)
    fault_s = time.time()
    arm.strike(fault)
    try:
        note(result, fault, stall_of(arm, fault_s, nodes, arm.noticed))
    except ClusterError as error:
        result.failures[fault] = str(error)
        progress(f"{arm.name} does not recover from a {fault}: {error}")
        return False
    return True


@contextmanager
def _living(make: Maker, directory: Path, environment: Mapping[str, str], nodes: int) -> Iterator[Rival]:
    arm = make(directory, environment, nodes)
    try:
        arm.permit(ENDLESS)
        arm.begin()
        yield arm
    finally:
        arm.stop()


def _against_others(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Our downtime after a kill against that of the others that ran."""
    if not results[OURS].stalls["kill"]:
        return []
    ours_s = max(downtime_s(results[OURS]), SHORTEST_S)
    theirs_s = {name: downtime_s(results[name]) for name in results if results[name].stalls["kill"]}
    bars = []
    if TORCHRUN in theirs_s:
        bars.append(bar("downtime_reduction_vs_torchrun", 1 - ours_s / theirs_s[TORCHRUN], at_least=0.95))
    if TORCHFT_TUNED in theirs_s:
        bars.append(bar("times_less_than_torchft_tuned", theirs_s[TORCHFT_TUNED] / ours_s, at_least=5.0))
    return bars
