"""A node of four is killed while 100 MB of training state is at work: how long do the survivors stand still,
and how long until a warm spare has taken its place and a step is committed at full strength?"""

from __future__ import annotations

import statistics
from typing import Any

from ..control import jobs
from .laboratory import LANGUAGE_MODEL, Observer, laboratory, language_model_env, progress, submit, wait_for_idle
from .report import bar, report, row

STALL_LIMIT_S = 0.5
FULL_STRENGTH_LIMIT_S = 1.5
BEFORE, BETWEEN = 6, 5
SETTLE_TIMEOUT_S = 60.0


def run(runs: int = 5, nodes: int = 4) -> dict[str, Any]:
    """Kill ``runs`` nodes, one after another, always waiting until the job is at full strength with a spare again."""
    with laboratory(nodes, spares=1) as store:
        fields = {"name": "recovery", "nodes": nodes, "spares": 1, "env": language_model_env(store)}
        watch = submit(store, LANGUAGE_MODEL.read_text(), fields)
        watch.until_step(BEFORE)
        samples = [_kill_once(watch, nodes, number) for number in range(runs)]
        jobs.stop(store, watch.job_id)
        watch.until_ended()
        wait_for_idle(store)
    stalls, strengths, steps = ([sample[i] for sample in samples] for i in range(3))
    state_mb = (watch.view["session"] or {}).get("state_bytes", 0) / 1e6
    case = f"SIGKILL of one of {nodes} nodes, {state_mb:.0f} MB of state"
    rows = [
        row("jupyter_hyperpod", case, "undisturbed step", "s", steps),
        row("jupyter_hyperpod", case, "kill to the survivors' next commit, minus one step", "s", stalls),
        row("jupyter_hyperpod", case, "kill to the first step at full strength", "s", strengths),
    ]
    bars = [
        bar("kill_stall_p50_s", rows[1]["median"], STALL_LIMIT_S),
        bar("spare_full_strength_s", rows[2]["median"], FULL_STRENGTH_LIMIT_S),
    ]
    return report("recovery", rows, bars)


def _kill_once(watch: Observer, nodes: int, number: int) -> tuple[float, float, float]:
    """Return (stall, time to full strength, undisturbed step), all in seconds."""
    watch.until(lambda: len(_ready_spares(watch)) > 0 and _undisturbed(watch, nodes), SETTLE_TIMEOUT_S)
    step_s = statistics.median(e.data["step_time_s"] for e in watch.of_kind("step.committed")[-BETWEEN:])
    victim = watch.view["members"][1 + number % (nodes - 1)]["node"]
    count = len(watch.of_kind("fault.injected"))
    jobs.fault(watch.store, watch.job_id, "kill", node=victim)
    watch.until(lambda: len(watch.of_kind("fault.injected")) > count, SETTLE_TIMEOUT_S)
    killed_s = watch.of_kind("fault.injected")[-1].time_s

    def after(world_size: int) -> list[float]:
        commits = (e for e in watch.of_kind("step.committed") if e.time_s > killed_s)
        generation = max(e.data["generation"] for e in watch.of_kind("generation.formed") if e.time_s <= killed_s)
        return [e.time_s for e in commits if e.data["generation"] > generation and e.data["world_size"] >= world_size]

    watch.until(lambda: bool(after(nodes)), SETTLE_TIMEOUT_S)
    stall_s, strength_s = after(1)[0] - killed_s - step_s, after(nodes)[0] - killed_s
    progress(f"kill {number + 1} ({victim}): stall {stall_s * 1000:.0f} ms, full strength {strength_s * 1000:.0f} ms")
    return stall_s, strength_s, step_s


def _undisturbed(watch: Observer, nodes: int) -> bool:
    recent = watch.of_kind("step.committed")[-BETWEEN:]
    generation = watch.view["generation"]
    return len(recent) == BETWEEN and all(
        e.data["generation"] == generation and e.data["world_size"] == nodes and not e.data["redone"] for e in recent
    )


def _ready_spares(watch: Observer) -> list[str]:
    """Workers that wait at their session, warm, for a place."""
    taken = {e.data["member"] for e in watch.of_kind("member.lost")} | {m["member"] for m in watch.view["members"]}
    return [e.data["member"] for e in watch.of_kind("member.ready") if e.data["member"] not in taken]
