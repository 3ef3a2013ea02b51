"""Bits flipped at random in the training state of a long run: how soon is each found, who is named, what is unharmed?

The cell itself flips them (`hp.faults`), in a step and on a rank drawn beforehand, and journals that it did. A second
run of many steps without a fault shows that nothing is found where nothing is; a third pair shows what looking costs.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
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
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.storage.store import Store

CAUSE = "silent data corruption"
KINDS = ("flip-parameter", "flip-optimizer")
SMALL = {"width": 16, "heads": 2, "layers": 1, "context": 8, "micro_batch": 1, "global_batch": 8}
ARM = "import json, os\nimport jupyter_hyperpod as hp\n" + (
    "for kind, step, rank in json.loads(os.environ['CORRUPTIONS']):\n    hp.faults.inject(kind, step=step, rank=rank)\n"
)
FIRST_STEP, GAPS = 5, (15, 45)
ROUND = 50
MORE = 1.5  # some are drawn for a rank that is just being replaced: they do not happen
LIMIT_S = 3600.0
COST_STEPS = 12


def run(
    injections: int = 200, steps: int = 10_000, members: int = 3, seed: int = 0, runs: int = 3,
    keep: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Flip about 1.5 times ``injections`` bits in at least ``steps`` steps, take as many steps without a fault, and
    measure the cost in ``runs`` pairs.

    Both are done in rounds of at most ROUND injections. With the directory ``keep`` it may be interrupted: rounds that
    are found there are not done again.
    """
    rounds = math.ceil(injections / ROUND)
    kept = Kept(keep, seed=seed, members=members, injections=injections, steps=steps)
    with laboratory(members, spares=2) as store:
        for number in range(rounds):
            name = f"{seed}-{number}"
            if name not in kept:
                plan = schedule(math.ceil(injections / rounds), members, random.Random(name))
                total = max(math.ceil(steps / rounds), plan[-1][1] + FIRST_STEP)
                disturbed, calm = (_job(store, members, total, corruptions) for corruptions in (plan, []))
                kept.add(name, found := _compare(disturbed, calm))
                if not found["same"]:
                    kept.evidence(name, store, disturbed.job_id)
                progress(f"{name}: {found}")
        cost = [_cost(store, looking) for _ in range(runs) for looking in (False, True)]
    return _report([kept[f"{seed}-{number}"] for number in range(rounds)], cost, injections, steps)


def _job(store: Store, members: int, steps: int, corruptions: list[tuple[str, int, int]]) -> Observer:
    wait_for_idle(store)
    env = language_model_env(store, **SMALL, steps=steps) | {"CORRUPTIONS": json.dumps(corruptions)}
    fields = {"name": "corruption", "nodes": members, "elastic": f"1:{members}", "spares": 2, "env": env}
    watch = submit(store, ARM + LANGUAGE_MODEL.read_text(), fields)
    watch.until_ended(LIMIT_S)
    progress(f"{len(flips(watch.events))} bits flipped in {len(watch.losses())} steps")
    return watch


def schedule(injections: int, members: int, rng: random.Random) -> list[tuple[str, int, int]]:
    """What is flipped before which step on which rank."""
    plan: list[tuple[str, int, int]] = []
    step = FIRST_STEP
    for _ in range(round(injections * MORE)):
        plan.append((rng.choice(KINDS), step, rng.randrange(members)))
        step += rng.randint(*GAPS)
    return plan


def flips(events: list[Event]) -> list[Event]:
    """Every flip that happened, in order."""
    return [event for event in events if event.kind == "fault.injected" and event.data["fault"] in KINDS]


def delay(flip: Event, events: list[Event]) -> int | None:
    """Steps that were applied with the flipped bit in the state before its owner was fenced; None: it never was."""
    later = [e for e in events if e.time_s >= flip.time_s]
    lost = (e for e in later if e.kind == "member.lost" and e.data["cause"] == CAUSE)
    own = next((e for e in lost if e.data["member"] == flip.data["member"]), None)
    if own is None:
        return None
    applied = (e.data["step"] for e in later if e.kind == "step.committed" and e.time_s <= own.time_s)
    return len({step for step in applied if step >= flip.data["step"]})


def _cost(store: Store, looking: bool) -> float:
    """Median undisturbed step of the full-sized model on two members, seconds."""
    wait_for_idle(store)
    env = language_model_env(store, steps=COST_STEPS) | {"LM_AUDIT": "state" if looking else ""}
    watch = submit(store, LANGUAGE_MODEL.read_text(), {"name": "cost", "nodes": 2, "spares": 0, "env": env})
    watch.until_ended(LIMIT_S)
    seconds: float = statistics.median(e.data["step_time_s"] for e in watch.of_kind("step.committed")[2:])
    progress(f"a step {'with' if looking else 'without'} checksums: {seconds * 1000:.1f} ms")
    return seconds


def _compare(disturbed: Observer, calm: Observer) -> Result:
    """What was found in a run with flips, and in the same run without."""
    flipped = flips(disturbed.events)
    charged = {e.data["member"] for e in disturbed.of_kind("member.lost") if e.data["cause"] == CAUSE}
    same = disturbed.losses() == calm.losses() and disturbed.view["digest"] == calm.view["digest"] is not None
    return {
        "delays": [delay(flip, disturbed.events) for flip in flipped],
        "innocent": len(charged - {flip.data["member"] for flip in flipped}),
        "problems": len(audit(disturbed.events).problems),
        "same": same,
        "alarms": sum(e.data["policy"] == "integrity" for e in calm.of_kind("decision.made")),
        "steps": len(calm.losses()),
    }


def _report(found: Sequence[Result], cost: Sequence[float], injections: int, steps: int) -> dict[str, Any]:
    delays = [steps for result in found for steps in result["delays"]]
    told = [steps for steps in delays if steps is not None]
    innocent, problems, alarms, calm = (
        sum(result[name] for result in found) for name in ("innocent", "problems", "alarms", "steps")
    )
    different = sum(not result["same"] for result in found)
    case, quiet = f"{len(delays)} random bit flips in {len(found)} runs", f"{calm} steps without a fault"
    rows = [
        row("jupyter_hyperpod", case, "steps applied between flip and detection", "steps", told or [0]),
        row("jupyter_hyperpod", case, "samples lost or repeated", "steps", [problems]),
        row("jupyter_hyperpod", case, "other losses or final state than without", "runs", [different]),
        row("jupyter_hyperpod", quiet, "alarms", "alarms", [alarms]),
    ]
    if cost:
        without, looking = cost[0::2], cost[1::2]
        ratios = [seconds / other for seconds, other in zip(looking, without, strict=True)]
        rows += [
            row("jupyter_hyperpod", "full-sized model, audit=None", "step", "s", without),
            row("jupyter_hyperpod", "full-sized model, audit='state'", "step", "s", looking),
            row("jupyter_hyperpod", "full-sized model", "step with checksums / step without", "ratio", ratios),
        ]
    bars = [
        bar("corruptions", len(delays), at_least=injections),
        bar("corruption_missed", len(delays) - len(told), 0),
        bar("corruption_culprit_wrong", innocent, 0),
        bar("corruption_delay_steps", max(told, default=0), 1),
        bar("corruption_mismatches", different + problems, 0),
        bar("false_alarms", alarms, 0),
        bar("steps_without_fault", calm, at_least=steps),
    ]
    return report("corruption", rows, bars)
