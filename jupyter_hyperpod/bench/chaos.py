"""Random schedules of faults on one cluster, each compared bit for bit with one undisturbed run of one node."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..control import jobs
from ..core.errors import Conflict
from ..core.events import TERMINAL_STATES
from ..runtime.audit import audit
from .laboratory import LANGUAGE_MODEL, Observer, laboratory, language_model_env, progress, submit, wait_for_idle
from .report import bar, report, row

STEPS = 40
SMALL = {"width": 32, "heads": 2, "layers": 2, "context": 32, "micro_batch": 2, "global_batch": 24, "steps": STEPS}
NODES = 4


@dataclass(frozen=True, slots=True)
class Blow:
    """One event of a schedule: after which step, what, and where (a rank modulo the world size, or a target)."""

    step: int
    kind: str
    where: int


def schedule(rng: random.Random) -> list[Blow]:
    """Three to six blows at random steps; kills and hangs of ranks, kills of whole nodes, changes of scale."""
    kinds = ["kill", "kill", "node", "hang", "scale", "scale"]
    blows = [
        Blow(rng.randrange(1, STEPS - 2), rng.choice(kinds), rng.randrange(NODES)) for _ in range(rng.randint(3, 6))
    ]
    return sorted(blows, key=lambda blow: blow.step)


def run(runs: int = 20, seed: int = 0) -> dict[str, Any]:
    """Run ``runs`` schedules drawn from ``seed``; the seed of a failing schedule is in the report."""
    with laboratory(NODES, spares=1) as store:
        fields = {"name": "chaos", "elastic": f"1:{NODES}", "env": language_model_env(store, **SMALL)}
        reference = _finish(submit(store, LANGUAGE_MODEL.read_text(), fields | {"nodes": 1, "spares": 0}))
        mismatches = lost = contradictions = events = 0
        for number in range(runs):
            wait_for_idle(store)
            rng = random.Random(f"{seed}:{number}")
            watch = submit(store, LANGUAGE_MODEL.read_text(), fields | {"nodes": rng.randint(2, NODES), "spares": 1})
            blows = schedule(rng)
            for blow in blows:
                events += _strike(watch, blow)
            _finish(watch)
            differing = _differences(watch, reference)
            mismatches += bool(differing)
            lost += len(set(range(1, STEPS + 1)) - watch.losses().keys())
            contradictions += len(audit(watch.events).problems)
            progress(f"schedule {seed}:{number}: {len(blows)} blows, {differing or 'identical'}")
    rows = [
        row("jupyter_hyperpod", "random schedules", "mismatches of losses or final state", "runs", [mismatches]),
        row("jupyter_hyperpod", "random schedules", "events", "events", [events]),
    ]
    bars = [bar("mismatches", mismatches, 0), bar("samples_lost", lost, 0), bar("samples_repeated", contradictions, 0)]
    return report("chaos", rows, bars) | {"seed": seed}


def _finish(watch: Observer) -> Observer:
    view = watch.until_ended()
    if view["state"] != "succeeded":
        progress(f"{watch.job_id} {view['state']}: {view['reason']}")
    return watch


def _strike(watch: Observer, blow: Blow) -> int:
    """Wait for the blow's step and deal it; 0 where the job was over already."""
    over: Callable[[], bool] = lambda: watch.view["state"] in TERMINAL_STATES  # noqa: E731
    watch.until(lambda: watch.view["step"] >= blow.step or over(), 60.0)
    members = watch.view["members"]
    if over() or not members or (len(members) == 1 and blow.kind != "scale"):
        return 0  # the last holder of the state: losing it starts the run again, which is another test
    victim = members[blow.where % len(members)]
    try:
        if blow.kind == "scale":
            jobs.scale(watch.store, watch.job_id, 1 + blow.where)
        elif blow.kind == "node":
            jobs.fault(watch.store, watch.job_id, "kill", node=victim["node"])
        else:
            jobs.fault(watch.store, watch.job_id, blow.kind, rank=victim["rank"])
    except Conflict:  # the job ended meanwhile
        return 0
    return 1


def _differences(watch: Observer, reference: Observer) -> str:
    """Empty where every loss and the final state are the same, else what differs."""
    ours, theirs = watch.losses(), reference.losses()
    parts = []
    if missing := sorted(theirs.keys() - ours.keys()):
        parts.append(f"steps without a commit: {missing}")
    if other := [step for step, loss in ours.items() if loss != theirs.get(step)]:
        parts.append(f"other losses from step {min(other)} on")
    if watch.view["digest"] != reference.view["digest"]:
        parts.append(f"state {watch.view['digest']}, expected {reference.view['digest']}")
    return f"DIFFERENT ({watch.job_id}, {watch.view['state']}): {'; '.join(parts)}" if parts else ""
