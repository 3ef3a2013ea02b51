"""What each checkpointless component is worth: the downtime of a kill with all of them, with each switched off, and
with none. Every job trains the same model and keeps durable checkpoints, which the others fall back to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

from benchmarks.kept import Kept, Result
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
from jupyter_hyperpod.core.spec import COMPONENTS
from jupyter_hyperpod.storage.store import Store

NODES = 3
BEFORE = 8
SETTLE_TIMEOUT_S = 90.0
CHECKPOINT_STEPS = 5
STEPS = 24
ALL, SAVED = "all components", "longer than with all components"


def run(runs: int = 3, nodes: int = NODES, keep: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Kill ``runs`` ranks of every arm, the arms taking turns; rounds found in ``keep`` are not repeated."""
    arms: dict[str, tuple[str, ...]] = {ALL: COMPONENTS}
    arms |= {f"without {name}": tuple(other for other in COMPONENTS if other != name) for name in COMPONENTS}
    arms["without all four"] = ()
    kept = Kept(keep, nodes=nodes)
    names = [f"round-{number}" for number in range(runs)]
    if todo := [name for name in names if name not in kept]:
        with laboratory(nodes, spares=1) as store:
            for name in todo:
                kept.add(name, {arm: _run(store, nodes, components) for arm, components in arms.items()})
                progress(f"{name}: {kept[name]}")
    return _report([kept[name] for name in names])


def _run(store: Store, nodes: int, components: tuple[str, ...]) -> Result:
    """One job that loses a rank."""
    wait_for_idle(store)
    place = f"shared://components/{secrets.token_hex(4)}"
    env = language_model_env(store, steps=STEPS) | {"LM_CHECKPOINT_EVERY": str(CHECKPOINT_STEPS)}
    fields = {"name": "components", "nodes": nodes, "elastic": f"1:{nodes}", "components": components}
    watch = submit(store, LANGUAGE_MODEL.read_text(), fields | {"env": env | {"LM_CHECKPOINT": place}})
    stall_s, strength_s = _kill(watch, nodes)
    return {"stall_s": stall_s, "strength_s": strength_s, "digest": watch.until_ended()["digest"]}


def _report(rounds: Sequence[Result]) -> dict[str, Any]:
    """What each component saves is counted round by round, against the arm with all of them."""
    rows = []
    for case, figure in (("kill to the next new step", "stall_s"), ("kill to full strength", "strength_s")):
        found = {arm: [results[arm][figure] for results in rounds] for arm in rounds[0]}
        rows += [row(arm, case, "took", "s", samples) for arm, samples in found.items()]
        for arm, samples in found.items():
            if arm != ALL:
                saved = [slow - fast for slow, fast in zip(samples, found[ALL], strict=True)]
                rows.append(row(arm, case, SAVED, "s", saved))
    digests = {result["digest"] for results in rounds for result in results.values()}
    return report("components", rows, [bar("different_final_states", len(digests) - 1, 0)])


def _kill(watch: Observer, nodes: int) -> tuple[float, float]:
    """Seconds from a kill to the next step that had not been committed before it, and to one of all members."""
    watch.until_step(BEFORE, SETTLE_TIMEOUT_S)
    watch.until(lambda: bool(watch.of_kind("checkpoint.saved")), SETTLE_TIMEOUT_S)
    jobs.fault(watch.store, watch.job_id, "kill", rank=1)
    watch.until(lambda: bool(watch.of_kind("fault.injected")), SETTLE_TIMEOUT_S)
    killed_s = watch.of_kind("fault.injected")[0].time_s
    commits = [e for e in watch.of_kind("step.committed") if e.time_s <= killed_s]
    last = max(e.data["step"] for e in commits)
    generation = max(e.data["generation"] for e in commits)

    def after(world_size: int) -> list[float]:
        return [
            e.time_s
            for e in watch.of_kind("step.committed")
            if e.data["step"] > last and e.data["generation"] > generation and e.data["world_size"] >= world_size
        ]

    watch.until(lambda: bool(after(nodes)), SETTLE_TIMEOUT_S)
    return after(1)[0] - killed_s, after(nodes)[0] - killed_s
