"""A member of four is cut off the network while 100 MB of training state is at work: nothing arrives from it any more,
and nothing says so. How long does training stand still, and does the side that was cut off ever commit a step?"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

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
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.bench.stalls import Stall, measure, steady
from jupyter_hyperpod.control import cluster, jobs
from jupyter_hyperpod.core.views import is_fenced

STALL_LIMIT_S = 1.0
PERMIT_ALL = 1_000_000
SETTLE_TIMEOUT_S = 90.0


@dataclass
class Outcome:
    """``stalls`` of the survivors; ``late`` steps that members committed after they had been fenced."""

    stalls: list[Stall] = field(default_factory=list)
    late: int = 0


def run(runs: int = 5, nodes: int = 4) -> dict[str, Any]:
    """Cut ``runs`` members off, one after another, always waiting until the job is whole again with a spare."""
    case = f"network partition of one of {nodes} members"
    if problem := network.missing():
        return report("partition", [not_run("jupyter_hyperpod", case, problem)], [])
    outcome = partition_samples(runs, nodes)
    rows = [
        row("jupyter_hyperpod", case, metric, unit, samples)
        for metric, unit, samples in (
            ("undisturbed step", "s", [s.step_s for s in outcome.stalls]),
            ("fault to the survivors' next commit, minus one step", "s", [s.stall_s for s in outcome.stalls]),
            ("fault to the first new step, minus one step", "s", [s.regained_s for s in outcome.stalls]),
            ("fault to the first step at full strength", "s", [s.strength_s for s in outcome.stalls]),
            ("steps committed by the side that was cut off, after it was fenced", "steps", [outcome.late]),
        )
    ]
    stall_s = statistics.median(s.regained_s for s in outcome.stalls)
    return report(
        "partition", rows, [bar("partition_stall_p50_s", stall_s, STALL_LIMIT_S), bar("late_commits", outcome.late, 0)]
    )


def partition_samples(runs: int, nodes: int = 4) -> Outcome:
    """Measure ``runs`` partitions on a cluster of its own. Raises ClusterError where networks cannot be isolated."""
    outcome = Outcome()
    with laboratory(nodes, spares=1, isolated=True) as store:
        fields = {"name": "partition", "nodes": nodes, "env": language_model_env(store, steps=PERMIT_ALL)}
        watch = submit(store, LANGUAGE_MODEL.read_text(), fields)
        for number in range(runs):
            watch.until(lambda: watch.spare_is_ready() and steady(watch.commits(), nodes), SETTLE_TIMEOUT_S)
            outcome.stalls.append(_cut_once(watch, number, nodes))
            cluster.heal(store)
        jobs.stop(store, watch.job_id)
        watch.until_ended()
        wait_for_idle(store)
    fenced = {event.data["member"]: event.time_s for event in watch.of_kind("member.lost")}
    outcome.late = sum(is_fenced(fenced, event) for event in watch.of_kind("step.committed"))
    return outcome


def _cut_once(watch: Observer, number: int, nodes: int) -> Stall:
    victim = watch.view["members"][number % nodes]["node"]
    count = len(watch.of_kind("fault.injected"))
    jobs.fault(watch.store, watch.job_id, "partition", node=victim)
    watch.until(lambda: len(watch.of_kind("fault.injected")) > count, SETTLE_TIMEOUT_S)
    cut_s = watch.of_kind("fault.injected")[-1].time_s
    watch.until(lambda: measure(watch.commits(), cut_s, nodes) is not None, SETTLE_TIMEOUT_S)
    stall = measure(watch.commits(), cut_s, nodes)
    assert stall is not None
    progress(f"partition {number + 1} ({victim}): stall {stall.stall_s:.2f} s, full strength {stall.strength_s:.2f} s")
    return stall
