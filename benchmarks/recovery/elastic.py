"""A job grows and shrinks while it trains, 2 -> 4 -> 3 nodes: how long do the survivors pause, in units of an ordinary
step, and is any process started anew? (`abuse` measures what failures every few steps cost.)"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

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
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.storage.store import Store

OURS = "jupyter_hyperpod"
NODES = 4
CHANGES = ((2, 4), (4, 3), (3, 2))
PAUSE_LIMIT_STEPS = 1.0
PAUSE = "pause of the survivors, in ordinary steps"
ORDINARY = 6  # undisturbed steps that an ordinary one is the median of
SETTLE_TIMEOUT_S = 120.0


def run(runs: int = 5) -> dict[str, Any]:
    """``runs`` times 2 -> 4 -> 3 -> 2 nodes, all on one job."""
    with laboratory(NODES, spares=0) as store:
        pauses, restarts, state_mb = _scale(store, runs)
    rows = []
    for (before, after), found in pauses.items():
        case = f"{before} to {after} nodes while training, {state_mb:.0f} MB of state"
        rows.append(row(OURS, case, PAUSE, "steps", found))
    bars = [
        bar("pause_steps", max(line["median"] for line in rows), PAUSE_LIMIT_STEPS),
        bar("restarts", restarts, 0),
    ]
    return report("elastic", rows, bars)


def _scale(store: Store, runs: int) -> tuple[dict[tuple[int, int], list[float]], int, float]:
    """Return the pauses by change, how many processes were restarted or lost, and the state's size in MB."""
    fields = {"name": "elastic", "nodes": 2, "elastic": f"1:{NODES}", "spares": 0, "env": language_model_env(store)}
    watch = submit(store, LANGUAGE_MODEL.read_text(), fields)
    pauses: dict[tuple[int, int], list[float]] = {change: [] for change in CHANGES}
    restarts = 0
    for _ in range(runs):
        for change in CHANGES:
            pause, gone = _change(watch, *change)
            pauses[change].append(pause)
            restarts += gone
            progress(f"{change[0]} -> {change[1]}: pause {pause:.2f} steps, {gone} restarted")
    jobs.stop(store, watch.job_id)
    view = watch.until_ended()
    wait_for_idle(store)
    state_mb = (view["session"] or {}).get("state_bytes", 0) / 1e6
    return pauses, restarts + len(watch.of_kind("member.lost")), state_mb


def _change(watch: Observer, before: int, after: int) -> tuple[float, int]:
    """Scale, and return the survivors' pause in ordinary steps and how many of them are not the same processes."""
    settle(watch, before)
    members = {member["member"] for member in watch.view["members"]}
    began = len(watch.of_kind("step.committed"))
    jobs.scale(watch.store, watch.job_id, after)
    settle(watch, after)
    now = {member["member"] for member in watch.view["members"]}
    return pause_steps(watch.of_kind("step.committed")[began - ORDINARY - 1 :]), min(before, after) - len(members & now)


def settle(watch: Observer, world_size: int) -> None:
    """Wait for `ORDINARY` undisturbed steps of ``world_size`` members in one generation."""
    first = len(watch.of_kind("step.committed"))

    def settled() -> bool:
        recent = watch.of_kind("step.committed")[first:][-ORDINARY - 1 :]
        places = {(e.data["generation"], e.data["world_size"]) for e in recent}
        return len(recent) > ORDINARY and len(places) == 1 and recent[0].data["world_size"] == world_size

    watch.until(settled, SETTLE_TIMEOUT_S)


def pause_steps(commits: Sequence[Event]) -> float:
    """The longest time between two commits beyond an ordinary step, in ordinary steps.

    ``commits`` begin and end with `ORDINARY` undisturbed steps each; the ordinary step is the longer of both medians,
    since another number of members has another step.
    """
    gaps = [later.time_s - earlier.time_s for earlier, later in zip(commits, commits[1:], strict=False)]
    ordinary_s = max(statistics.median(gaps[:ORDINARY]), statistics.median(gaps[-ORDINARY:]))
    return max(0.0, max(gaps) / ordinary_s - 1)
