"""The planner against the machine: how long it simulates, and how far it is from real jobs under the same faults."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import ROOT
from benchmarks.recovery.chaos import Blow, reach, strike
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
from jupyter_hyperpod.planner import causes
from jupyter_hyperpod.planner.calibrate import Measured, measure
from jupyter_hyperpod.planner.goodput import CheckpointCosts, ClusterModel, Downtime
from jupyter_hyperpod.planner.quantities import DAY_S
from jupyter_hyperpod.planner.scenario import Fault, Scenario, Timing, in_place
from jupyter_hyperpod.planner.simulate import simulate
from jupyter_hyperpod.storage.store import Store

OURS = "jupyter_hyperpod"
MEMBERS, SPARES, STEPS = 4, 2, 120
MODEL = {"width": 96, "heads": 4, "layers": 4, "context": 64, "micro_batch": 4, "global_batch": 48, "steps": STEPS}
KIND_OF = {"kill": causes.KILLED, "node": causes.KILLED, "hang": causes.HUNG}
FAULTS = 5
PUBLISHED_RUNS = 50
APART = 12  # steps, so that a spare is there again
YEAR = """
import json, resource, sys, time
from benchmarks.planner.plan import year
before_s = time.process_time()
found = year(int(sys.argv[1]))
peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([time.process_time() - before_s, 1024 * peak_kb, found.failures.mean, found.goodput.mean]))
"""


def run(runs: int = 3, seed: int = 0, instances: int = 100_000) -> dict[str, Any]:
    """A year of ``instances``, the published 54 days, and ``runs`` schedules of faults on a cluster of processes."""
    took_s, peak, failures, goodput = _in_a_process(instances)
    progress(f"{instances:,} instances for a year: {took_s:.1f} s, {peak / 1e6:.0f} MB, {failures:,.0f} failures")
    published = _published(seed)
    pairs = _real(runs, seed)
    errors = [abs(predicted / measured - 1) for measured, predicted in pairs]
    case = f"{instances:,} instances, one year"
    faulty = f"{FAULTS} faults in {STEPS} steps"
    rows = [
        row(OURS, case, "CPU time", "s", [took_s]),
        row(OURS, case, "memory", "bytes", [peak]),
        row(OURS, case, "failures", "failures", [failures]),
        row(OURS, case, "goodput", "", [goodput]),
        row(OURS, "16,384 GPUs, 54 days", "failures", "failures", [published]),
        row(OURS, faulty, "measured goodput", "", [measured for measured, _ in pairs]),
        row(OURS, faulty, "simulated goodput", "", [predicted for _, predicted in pairs]),
    ]
    bars = [
        bar("year_s", took_s, 60.0),
        bar("year_bytes", peak, 1e9),
        bar("interruptions_off", abs(published - causes.LLAMA3_INTERRUPTIONS), 3 * math.sqrt(419 / PUBLISHED_RUNS)),
        bar("goodput_off", max(errors), 0.05),
    ]
    return report("plan", rows, bars)


def year(instances: int) -> Any:
    """One simulated year at the published failure rate; the program's own errors are started again in two minutes."""
    cluster = ClusterModel(instances, _rate())
    scenario = in_place(
        cluster, 365, Downtime.parse("2min"), spares=instances // 200, checkpoints=CheckpointCosts(5.0),
        timing=Timing(regroup_s=5.0),
    )  # fmt: skip
    return simulate(replace(scenario, work_s=math.inf, limit_s=365 * DAY_S), 0, 1)


def _rate() -> float:
    return causes.LLAMA3_INTERRUPTIONS / (causes.LLAMA3_GPUS / 8 * causes.LLAMA3_HOURS)


def _in_a_process(instances: int) -> tuple[float, float, float, float]:
    """CPU seconds, peak bytes, failures and goodput of `year` in an interpreter of its own."""
    command = [sys.executable, "-c", YEAR, str(instances)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    took_s, peak, failures, goodput = json.loads(done.stdout)
    return took_s, peak, failures, goodput


def _published(seed: int) -> float:
    """Mean failures of the published run."""
    cluster = ClusterModel(causes.LLAMA3_GPUS // 8, _rate())
    scenario = in_place(cluster, 54, Downtime.parse("40min"), spares=16, checkpoints=CheckpointCosts(30.0))
    endless = replace(scenario, work_s=math.inf, limit_s=54 * DAY_S)
    return simulate(endless, seed, PUBLISHED_RUNS).failures.mean


def _real(runs: int, seed: int) -> list[tuple[float, float]]:
    """Goodput measured and simulated, of jobs that another one calibrated."""
    pairs = []
    with laboratory(MEMBERS, SPARES) as store:
        known = disturbed(store, schedule(random.Random(f"{seed}-calibration"), list(KIND_OF)), [])
        progress(f"calibrated by {known.sentence}")
        for number in range(runs):
            dealt: list[Blow] = []
            measured = disturbed(store, schedule(random.Random(f"{seed}-{number}"), list(KIND_OF)), dealt)
            predicted = predict(known, dealt)
            told = ", ".join(f"{blow.kind} at {blow.step}" for blow in dealt)
            progress(f"{told}: goodput {measured.goodput:.3f}, simulated {predicted:.3f}")
            pairs.append((measured.goodput, predicted))
    return pairs


def schedule(rng: random.Random, kinds: Sequence[str]) -> list[Blow]:
    """Blows so far apart that a spare is there again; every kind at least once."""
    chosen = [*kinds, *rng.choices(kinds, k=FAULTS - len(kinds))]
    rng.shuffle(chosen)
    free = STEPS - 10 - APART * (FAULTS + 1)
    steps = [APART * number + at for number, at in enumerate(sorted(rng.randrange(free) for _ in chosen), 1)]
    return [Blow(step, kind, rng.randrange(MEMBERS)) for step, kind in zip(steps, chosen, strict=True)]


def disturbed(store: Store, blows: Sequence[Blow], dealt: list[Blow], steps: int = STEPS) -> Measured:
    """What the journal of one job under blows tells; those that were carried out are added to ``dealt``."""
    wait_for_idle(store)
    fields = {"name": "plan", "nodes": MEMBERS, "spares": SPARES, "elastic": f"1:{MEMBERS}"}
    watch = submit(
        store, LANGUAGE_MODEL.read_text(), fields | {"env": language_model_env(store, **MODEL | {"steps": steps})}
    )
    for blow in blows:
        if reach(watch, blow.step) and strike(watch, blow):
            dealt.append(blow)
    watch.until_ended()
    return _measured(watch)


def _measured(watch: Observer) -> Measured:
    return measure(watch.job_id, watch.events)


def predict(known: Measured, blows: Sequence[Blow], steps: int = STEPS) -> float:
    """The simulated goodput of a job under these blows, with the timing of another one."""
    faults = tuple(Fault(blow.step * known.step_s, KIND_OF[blow.kind]) for blow in blows)
    scenario = Scenario(
        ClusterModel(MEMBERS, 0.0),
        (steps - 1) * known.step_s,
        Downtime(),
        timing=known.timing(),
        spares=SPARES,
        repair_s=0.0,
        faults=faults,
    )
    return simulate(scenario, 0, 1).goodput.mean
