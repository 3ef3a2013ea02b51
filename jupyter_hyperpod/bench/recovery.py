"""Measures recovery: one of four members is killed or stopped, with 100 MB of training state. How long does training
stand still, and how long until it continues with as many members as before?"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..control import jobs
from ..storage.store import Store
from .laboratory import LANGUAGE_MODEL, laboratory, language_model_env, progress, submit, wait_for_idle
from .report import bar, not_run, report, row
from .stalls import Commit, Stall, measure, percentile, steady, undisturbed_s

OURS = "jupyter_hyperpod"
FAULTS = {"kill": "SIGKILL", "hang": "SIGSTOP"}
ENDLESS = 1_000_000
SETTLE_TIMEOUT_S = 90.0
SEED = 0
LIMITS = {
    "kill_stall_p50_s": 0.150,
    "kill_stall_p99_s": 1.0,
    "hang_stall_p50_s": 2.0,
    "spare_full_strength_s": 1.0,
}

METRICS = (  # and the field of a `Stall` that has it
    ("undisturbed step", "s", "step_s"),
    ("fault to the survivors' next commit, minus one step", "s", "stall_s"),
    ("fault to the first new step, minus one step", "s", "regained_s"),
    ("steps computed again", "steps", "repeated"),
    ("fault to the first step at full strength", "s", "strength_s"),
)


class ObservedRun(Protocol):
    """A training run, observed from outside through its committed steps."""

    def commits(self) -> list[Commit]:
        """Every step committed so far."""

    def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition; raises ClusterError after ``timeout_s``."""


@dataclass
class Result:
    """The result of one arm: stalls by fault, and why it failed."""

    name: str
    stalls: dict[str, list[Stall]] = field(default_factory=lambda: {fault: [] for fault in FAULTS})
    failures: dict[str, str] = field(default_factory=dict)


def run(runs: int = 2, nodes: int = 4, kills: int = 4, hangs: int = 2, collectives: str = "auto") -> dict[str, Any]:
    """``runs`` jobs, one after another; each meets ``kills`` kills and ``hangs`` hangs.

    ``collectives``: how members exchange gradients, as of ``submit --collectives``.
    """
    result = Result(OURS)
    rng = random.Random(SEED)
    with laboratory(nodes, spares=1) as store:
        environment = language_model_env(store, steps=ENDLESS)
        for number in range(runs):
            progress(f"round {number + 1} of {runs}: {OURS}")
            our_life(store, environment, result, nodes, ["kill"] * kills + ["hang"] * hangs, rng, collectives)
    return report("recovery", rows_of(result, nodes), our_bars(result))


def our_life(
    store: Store,
    environment: Mapping[str, str],
    result: Result,
    nodes: int,
    faults: list[str],
    rng: random.Random,
    collectives: str = "auto",
) -> None:
    """One job that meets ``faults``, one after another."""
    fields = {"name": "recovery", "nodes": nodes, "spares": 1, "env": environment, "collectives": collectives}
    watch = submit(store, LANGUAGE_MODEL.read_text(), fields)
    for number, fault in enumerate(faults):
        watch.until(lambda: watch.spare_is_ready() and steady(watch.commits(), nodes), SETTLE_TIMEOUT_S)
        victim = watch.view["members"][1 + number % (nodes - 1)]
        aim = {"node": victim["node"]} if fault == "kill" else {"rank": victim["rank"]}
        count = len(watch.of_kind("fault.injected"))
        some_way_into_a_step(watch, rng)
        jobs.fault(store, watch.job_id, fault, **aim)
        watch.until(lambda count=count: len(watch.of_kind("fault.injected")) > count, SETTLE_TIMEOUT_S)  # type: ignore[misc]
        note(result, fault, stall_of(watch, watch.of_kind("fault.injected")[-1].time_s, nodes))
    jobs.stop(store, watch.job_id)
    watch.until_ended()
    wait_for_idle(store)


def some_way_into_a_step(watched: ObservedRun, rng: random.Random) -> None:
    """Wait a random part of a step, so that faults do not always come when the observer reads a commit."""
    time.sleep(rng.random() * undisturbed_s(watched.commits()))


def stall_of(watched: ObservedRun, fault_s: float, nodes: int, noticed: Callable[[], None] | None = None) -> Stall:
    """Wait until the run is at full strength again and return its stall. Raises ClusterError where it fails."""
    generation = max(commit.generation for commit in watched.commits() if commit.time_s <= fault_s)
    watched.until(lambda: any(commit.generation > generation for commit in watched.commits()), SETTLE_TIMEOUT_S)
    if noticed is not None:
        noticed()
    watched.until(lambda: measure(watched.commits(), fault_s, nodes) is not None, SETTLE_TIMEOUT_S)
    stall = measure(watched.commits(), fault_s, nodes)
    assert stall is not None
    return stall


def note(result: Result, fault: str, stall: Stall) -> None:
    """Add a stall to the result and say it."""
    result.stalls[fault].append(stall)
    progress(
        f"  {fault}: stall {stall.stall_s * 1000:.0f} ms, new ground after {stall.regained_s * 1000:.0f} ms "
        f"({stall.repeated} steps again), full strength {stall.strength_s * 1000:.0f} ms"
    )


def rows_of(result: Result, nodes: int) -> list[dict[str, Any]]:
    """The lines of the report about one system."""
    rows = []
    for fault, signal in FAULTS.items():
        case = f"{signal} of one of {nodes} members"
        if stalls := result.stalls[fault]:
            for metric, unit, field_name in METRICS:
                rows.append(row(result.name, case, metric, unit, [getattr(stall, field_name) for stall in stalls]))
        if fault in result.failures:
            rows.append(not_run(result.name, case, result.failures[fault]))
    return rows


def our_bars(result: Result) -> list[dict[str, Any]]:
    """The bars: our limits for the measured values."""
    kills, hangs = result.stalls["kill"], result.stalls["hang"]
    values = {}
    if kills:
        values["kill_stall_p50_s"] = downtime_s(result)
        values["kill_stall_p99_s"] = percentile([s.regained_s for s in kills], 0.99)
        values["spare_full_strength_s"] = statistics.median(s.strength_s for s in kills)
    if hangs:
        values["hang_stall_p50_s"] = statistics.median(s.regained_s for s in hangs)
    return [bar(name, values[name], limit) for name, limit in LIMITS.items() if name in values]


def downtime_s(result: Result) -> float:
    """Median time without progress after a kill: steps that were committed before do not count as progress."""
    return statistics.median(s.regained_s for s in result.stalls["kill"])
