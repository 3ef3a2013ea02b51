"""Hours in minutes: one job under a fault every few seconds. What grows? Is anything lost?

Rank 0 is spared, so that one worker and its agent live through every change of membership, beside the coordinator and
the supervisor: their memory and descriptors are read from /proc all the while.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

from benchmarks.recovery.chaos import KINDS, Blow, strike
from jupyter_hyperpod.backends.local import network
from jupyter_hyperpod.bench.laboratory import (
    LANGUAGE_MODEL,
    Observer,
    laboratory,
    language_model_env,
    progress,
    submit,
    wait_for_idle,
)
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control import cluster, jobs
from jupyter_hyperpod.runtime.audit import audit

MODEL = {"width": 32, "heads": 2, "layers": 2, "context": 32, "micro_batch": 2, "global_batch": 24}
STEPS = 10_000_000
PAUSE_S = 0.1
SAMPLE_S = 2.0
MEMORY_LIMIT_MB, DESCRIPTORS_LIMIT = 10.0, 3


def run(minutes: float = 30.0, seed: int = 0, members: int = 4, every_s: float = 3.0) -> dict[str, Any]:
    """Disturb one job for ``minutes``, a fault every ``every_s`` seconds; then compare it with an undisturbed one."""
    rng = random.Random(seed)
    isolated = not network.missing()
    kinds = [kind for kind in KINDS if kind != "partition" or isolated]
    with laboratory(members, spares=1, isolated=isolated) as store:
        env = language_model_env(store, **MODEL, steps=STEPS)
        fields = {"name": "soak", "nodes": members, "elastic": f"1:{members}", "spares": 1}
        watch = submit(store, LANGUAGE_MODEL.read_text(), fields | {"env": env | {"LM_PAUSE_S": str(PAUSE_S)}})
        watch.until_step(3)
        readings, dealt = _disturb(watch, rng, kinds, 60 * minutes, every_s)
        jobs.stop(store, watch.job_id)
        watch.until_ended()
        wait_for_idle(store)
        steps = watch.view["step"]
        alone = fields | {"nodes": 1, "spares": 0, "env": env | {"LM_STEPS": str(steps)}}
        reference = submit(store, LANGUAGE_MODEL.read_text(), alone)
        reference.until_through()
    return _report(readings, dealt, watch, reference, minutes)


Reading = dict[str, tuple[float, int]]


def _disturb(
    watch: Observer, rng: random.Random, kinds: list[str], for_s: float, every_s: float
) -> tuple[list[Reading], int]:
    """Blow after blow; returns readings of the processes that live through it, and how many blows were dealt."""
    ends_s = time.monotonic() + for_s
    readings: list[Reading] = []
    dealt = 0
    next_blow_s = next_sample_s = time.monotonic() + every_s
    while (now := time.monotonic()) < ends_s and watch.view["state"] in ("running", "recovering"):
        if now >= next_blow_s:
            next_blow_s = now + every_s
            blow = Blow(0, rng.choices(kinds, [KINDS[kind] for kind in kinds])[0], rng.randrange(100))
            dealt += strike(watch, blow, safe_ranks=1)
            if blow.kind != "partition":
                cluster.heal(watch.store)
        if now >= next_sample_s:
            next_sample_s = now + SAMPLE_S
            readings.append(_read(watch))
            if len(readings) % 30 == 0:
                minutes = len(readings) * SAMPLE_S / 60
                progress(f"{minutes:.0f} min: step {watch.view['step']}, {dealt} faults, {readings[-1]}")
        _follow(watch, now + 0.2)
    cluster.heal(watch.store)
    return readings, dealt


def _follow(watch: Observer, until_s: float) -> None:
    watch.until(lambda: time.monotonic() >= until_s, 60.0)


def _read(watch: Observer) -> Reading:
    """Role -> (resident megabytes, open descriptors)."""
    worker = int(watch.view["members"][0]["member"].rpartition(".")[2])
    found: Reading = {}
    endpoint = watch.store.job(watch.job_id).path / "coordinator.json"
    with suppress(OSError, ValueError, KeyError):
        pids = {"worker": worker, "agent": _parent(worker), "supervisor": cluster.status(watch.store)["pid"]}
        pids["coordinator"] = json.loads(endpoint.read_text())["pid"]
        for role, pid in pids.items():
            found[role] = (_resident_mb(pid), len(os.listdir(f"/proc/{pid}/fd")))
    return found


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth(series: list[float]) -> float:
    """Median of the last third minus that of the second: the first third is warming up."""
    third = len(series) // 3
    return statistics.median(series[2 * third :]) - statistics.median(series[third : 2 * third]) if third else 0.0


def _report(
    readings: list[Reading], dealt: int, watch: Observer, reference: Observer, minutes: float
) -> dict[str, Any]:
    series: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for reading in readings:
        for role, value in reading.items():
            series[role].append(value)
    case = f"{minutes:g} minutes, {dealt} faults, {watch.view['step']} steps"
    rows, memory, descriptors = [], [0.0], [0.0]
    for role, values in series.items():
        memory.append(growth([mb for mb, _ in values]))
        descriptors.append(growth([float(count) for _, count in values]))
        rows.append(row(role, case, "resident memory", "MB", [mb for mb, _ in values]))
        rows.append(row(role, case, "open descriptors", "descriptors", [count for _, count in values]))
    ours, theirs = watch.losses(), reference.losses()
    found = audit(watch.events)
    bars = [
        bar("memory_growth_mb", max(memory), MEMORY_LIMIT_MB),
        bar("descriptors_growth", max(descriptors), DESCRIPTORS_LIMIT),
        bar("mismatches", sum(ours.get(step) != loss for step, loss in theirs.items()), 0),
        bar("samples_lost", len(set(range(1, watch.view["step"] + 1)) - ours.keys()), 0),
        bar("samples_repeated", len(found.problems), 0),
        bar("steps_compared", len(theirs), at_least=watch.view["step"]),
    ]
    return report("soak", rows, bars)
