"""Random schedules of faults on one cluster, each compared bit for bit with one undisturbed run of one node."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.local import network
from ..control import cluster, jobs
from ..core.errors import Conflict, NotFound
from ..core.events import TERMINAL_STATES
from ..runtime.audit import audit
from .laboratory import LANGUAGE_MODEL, Observer, laboratory, language_model_env, progress, submit, wait_for_idle
from .report import bar, report, row

STEPS = 40
SMALL = {"width": 32, "heads": 2, "layers": 2, "context": 32, "micro_batch": 2, "global_batch": 24, "steps": STEPS}
# one name, one kind of event: how often it is drawn
KINDS = {"kill": 3, "node": 2, "hang": 1, "partition": 1, "preempt": 1, "join": 2, "leave": 2, "throttle": 1}
BLOWS = (5, 8)


@dataclass(frozen=True, slots=True)
class Blow:
    """One event of a schedule: after which step, what, and where (any number: a rank modulo the world size)."""

    step: int
    kind: str
    where: int


def schedule(rng: random.Random, members: int, kinds: Sequence[str]) -> list[Blow]:
    """Blows at random steps, one after another."""
    weights = [KINDS[kind] for kind in kinds]
    drawn = rng.choices(kinds, weights, k=rng.randint(*BLOWS))
    return sorted((Blow(rng.randrange(STEPS - 2), kind, rng.randrange(members)) for kind in drawn), key=_step)


def run(runs: int = 20, seed: int = 0, members: int = 8) -> dict[str, Any]:
    """Run ``runs`` schedules drawn from ``seed`` on up to ``members`` nodes; a failing schedule is named in the report.

    Partitions need nodes with networks of their own, and so root; where that is missing they are left out, and the
    report says so.
    """
    missing = network.missing()
    kinds = [kind for kind in KINDS if kind != "partition" or not missing]
    dealt: Counter[str] = Counter()
    failing: list[str] = []
    lost = repeated = 0
    with laboratory(members, spares=1, isolated=not missing) as store:
        fields = {"name": "chaos", "elastic": f"1:{members}", "env": language_model_env(store, **SMALL)}
        reference = _finish(submit(store, LANGUAGE_MODEL.read_text(), fields | {"nodes": 1, "spares": 0}))
        for number in range(runs):
            wait_for_idle(store)
            rng = random.Random(f"{seed}:{number}")
            watch = submit(store, LANGUAGE_MODEL.read_text(), fields | {"nodes": rng.randint(1, members), "spares": 1})
            blows = [blow for blow in schedule(rng, members, kinds) if reach(watch, blow.step) and strike(watch, blow)]
            _finish(watch)
            cluster.heal(store)
            dealt.update(blow.kind for blow in blows)
            found = audit(watch.events)
            lost += len(set(range(1, STEPS + 1)) - watch.losses().keys())
            repeated += len(found.problems)
            if differing := _differences(watch, reference):
                failing.append(f"{seed}:{number}")
            worlds = sorted({event.data["world_size"] for event in watch.of_kind("step.committed")})
            told = differing or "identical"
            progress(f"schedule {seed}:{number}: {len(blows)} events, {worlds} members, {told}")
    left_out = {} if not missing else {"left_out": f"partition: {missing}"}
    return _report(dealt, failing, lost, repeated, runs) | {"seed": seed, "failing": failing} | left_out


def _report(dealt: Counter[str], failing: list[str], lost: int, repeated: int, runs: int) -> dict[str, Any]:
    case = f"{runs} random schedules"
    rows = [row("jupyter_hyperpod", case, f"events: {kind}", "events", [dealt[kind]]) for kind in sorted(dealt)]
    rows.append(row("jupyter_hyperpod", case, "mismatches of losses or final state", "runs", [len(failing)]))
    bars = [
        bar("mismatches", len(failing), 0),
        bar("samples_lost", lost, 0),
        bar("samples_repeated", repeated, 0),
        bar("events", dealt.total(), at_least=5 * runs),
    ]
    return report("chaos", rows, bars)


def _finish(watch: Observer) -> Observer:
    view = watch.until_ended()
    if view["state"] != "succeeded":
        progress(f"{watch.job_id} {view['state']}: {view['reason']}")
    return watch


def reach(watch: Observer, step: int) -> bool:
    """Wait for a committed step; False where the job is over."""
    watch.until(lambda: watch.view["step"] >= step or watch.view["state"] in TERMINAL_STATES, 60.0)
    return watch.view["state"] not in TERMINAL_STATES and bool(watch.view["members"])


def strike(watch: Observer, blow: Blow, safe_ranks: int = 0) -> bool:
    """Deal a blow, to none of the first ``safe_ranks``; True where it was carried out."""
    members = watch.view["members"]
    exposed = members[safe_ranks:]
    count = len(watch.of_kind("command.done"))
    store, job = watch.store, watch.job_id
    try:
        if blow.kind in ("join", "leave"):
            change = (1 + blow.where % 3) * (1 if blow.kind == "join" else -1)
            wish = min(max(1 + safe_ranks, len(members) + change), watch.view["maximum"])
            jobs.scale(store, job, wish)
        elif not exposed:
            return False
        elif blow.kind in ("node", "partition"):
            victim = exposed[blow.where % len(exposed)]["node"]
            jobs.fault(store, job, "kill" if blow.kind == "node" else blow.kind, node=victim)
        else:
            rank = exposed[blow.where % len(exposed)]["rank"]
            factor, duration_s = (3.0, 1.0) if blow.kind == "throttle" else (None, None)
            jobs.fault(store, job, blow.kind, rank=rank, factor=factor, duration_s=duration_s)
    except (Conflict, NotFound):  # the job has ended, or the victim is gone
        return False
    watch.until(lambda: len(watch.of_kind("command.done")) > count or watch.view["state"] in TERMINAL_STATES, 60.0)
    return any(answer.data["ok"] for answer in watch.of_kind("command.done")[count:])


def _step(blow: Blow) -> int:
    return blow.step


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
