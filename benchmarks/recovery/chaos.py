"""Random schedules of faults on one cluster, each compared bit for bit with one undisturbed run of one node."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.kept import Kept, Result
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
from jupyter_hyperpod.core.errors import ClusterError, Conflict, NotFound
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.runtime.audit import audit

OURS = "jupyter_hyperpod"
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


def run(
    runs: int = 20,
    seed: int = 0,
    members: int = 8,
    first: int = 0,
    keep: str | os.PathLike[str] | None = None,
    collectives: str = "auto",
) -> dict[str, Any]:
    """Run ``runs`` schedules drawn from ``seed`` on up to ``members`` nodes; a failing schedule is named in the report.

    With the directory ``keep`` it may be interrupted: schedules that are found there are not run again. ``first`` is
    the first schedule's number, so that several processes can share the work. Partitions need nodes with networks of
    their own, and so root; where that is missing they are left out, and the report says so. The undisturbed run always
    exchanges gradients through the host, the others by ``collectives``.
    """
    missing = network.missing()
    kinds = [kind for kind in KINDS if kind != "partition" or not missing]
    kept = Kept(keep, seed=seed, members=members, collectives=collectives)
    names = [f"{seed}-{number}" for number in range(first, first + runs)]
    if todo := [name for name in names if name not in kept]:
        with laboratory(members, spares=1, isolated=not missing) as store:
            environment = language_model_env(store, **SMALL)
            fields: dict[str, Any] = {"name": "chaos", "elastic": f"1:{members}", "env": environment}
            reference = submit(store, LANGUAGE_MODEL.read_text(), fields | {"nodes": 1, "spares": 0})
            reference.until_ended()
            fields["collectives"] = collectives
            for name in todo:
                wait_for_idle(store)
                rng = random.Random(name)
                nodes = {"nodes": rng.randint(1, members), "spares": 1}
                watch = submit(store, LANGUAGE_MODEL.read_text(), fields | nodes)
                result = _disturb(watch, schedule(rng, members, kinds), reference)
                if result["different"]:
                    kept.evidence(name, store, watch.job_id)
                kept.add(name, result)
                told = result["different"] or "identical"
                progress(
                    f"schedule {name}: {sum(result['events'].values())} events, {result['worlds']} members, {told}"
                )
                cluster.heal(store)
    left_out = {} if not missing else {"left_out": f"partition: {missing}"}
    results = {name: kept[name] for name in names}
    failing = [name for name, result in results.items() if result["different"]]
    return _report(list(results.values())) | {"seed": seed, "failing": failing} | left_out


def _disturb(watch: Observer, blows: Sequence[Blow], reference: Observer) -> Result:
    """Deal the blows to a job, wait for its end and compare; a job that stands still is stopped and told of."""
    dealt: Counter[str] = Counter()
    different = ""
    try:
        for blow in blows:
            if reach(watch, blow.step) and strike(watch, blow):
                dealt[blow.kind] += 1
        watch.until_ended()
    except ClusterError as error:
        different = f"STUCK: {error}"
        jobs.stop(watch.store, watch.job_id)
        watch.until_ended()
    commits = watch.of_kind("step.committed")
    return {
        "events": dict(dealt),
        "worlds": sorted({event.data["world_size"] for event in commits}),
        "uneven": sum((SMALL["global_batch"] // SMALL["micro_batch"]) % e.data["world_size"] > 0 for e in commits),
        "lost": len(set(range(1, STEPS + 1)) - watch.losses().keys()),
        "repeated": len(audit(watch.events).problems),
        "different": different or _differences(watch, reference),
    }


def _report(results: Sequence[Result]) -> dict[str, Any]:
    dealt: Counter[str] = Counter()
    for result in results:
        dealt.update(result["events"])
    failing = sum(bool(result["different"]) for result in results)
    case = f"{len(results)} random schedules"
    rows = [row(OURS, case, f"events: {kind}", "events", [dealt[kind]]) for kind in sorted(dealt)]
    rows += [
        row(OURS, case, "events: all", "events", [dealt.total()]),
        row(OURS, case, "members", "members", [world for result in results for world in result["worlds"]] or [0]),
        row(OURS, case, "steps with uneven shares", "steps", [sum(result["uneven"] for result in results)]),
        row(OURS, case, "mismatches of losses or final state", "runs", [failing]),
    ]
    bars = [
        bar("mismatches", failing, 0),
        bar("samples_lost", sum(result["lost"] for result in results), 0),
        bar("samples_repeated", sum(result["repeated"] for result in results), 0),
        bar("events", dealt.total(), at_least=5 * len(results)),
    ]
    return report("chaos", rows, bars)


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
