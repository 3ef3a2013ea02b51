"""torchft's published abuse: members are killed every 5.5 and every 1.4 steps on average. How much training is left?

Two ways of counting, both against an undisturbed run on the same cluster: by the clock, as if the whole fleet had been
there all the time, and by the members that really were. What a failure costs hardly depends on how long a step takes,
but a rate per step does: ``micro_batches`` says how long steps are. The published run had a failure every 15 s at the
higher rate, so its steps took about 11 s.

The processor time that a failure costs is measured, too: what the job's processes, the ended ones included, have used
beyond that of as many undisturbed steps. Other work on the machine changes it little, and the clock much.
"""

from __future__ import annotations

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
    processor_s,
    progress,
    submit,
    wait_for_idle,
)
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.bench.stalls import Commit, step_times
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import Conflict, NotFound
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.storage.store import Store

WARM_UP = 6
EVERY_STEPS = {5.5: 0.90, 1.4: 0.60}
RUN_TIMEOUT_S = 600.0


def run(
    runs: int = 1, nodes: int = 4, steps: int = 36, micro_batches: int = 64,
    keep: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """``runs`` times: one undisturbed job of ``steps`` steps, then one for each rate of failure. Rounds found in the
    directory ``keep`` are not repeated."""
    kept = Kept(keep, nodes=nodes, steps=steps, micro_batches=micro_batches, counts="time, core-s")
    names = [f"round-{number}" for number in range(runs)]
    if todo := [name for name in names if name not in kept]:
        with laboratory(nodes, spares=1) as store:
            for name in todo:
                kept.add(name, _round(store, nodes, steps, micro_batches, name))
                progress(f"{name}: {kept[name]}")
    return _report([kept[name] for name in names], nodes, steps)


def _round(store: Store, nodes: int, steps: int, micro_batches: int, name: str) -> Result:
    """What is left of an undisturbed run's speed at each rate of failure."""
    watch, calm_core_s = _job(store, nodes, steps, micro_batches)
    calm = _commits(watch)
    found: Result = {}
    for mean in EVERY_STEPS:
        watch, core_s = _job(store, nodes, steps, micro_batches, (mean, random.Random(f"{name}:{mean}")))
        by_clock, by_members = efficiency(_commits(watch), calm, nodes)
        kills = len(watch.of_kind("fault.injected"))
        step_s = _elapsed_s(calm) / (steps - WARM_UP)
        cost_s = (core_s - calm_core_s) / max(1, kills)
        found[f"{mean:g}"] = {
            "clock": by_clock, "members": by_members, "kills": kills, "step_s": step_s, "kill_core_s": cost_s,
            "step_core_s": calm_core_s / steps, "work": calm_core_s / core_s,
        }  # fmt: skip
    return found


def _report(rounds: Sequence[Result], nodes: int, steps: int) -> dict[str, Any]:
    rows, bars = [], []
    for mean, least in EVERY_STEPS.items():
        found = [results[f"{mean:g}"] for results in rounds]
        clock, members, kills, step_s = ([r[name] for r in found] for name in ("clock", "members", "kills", "step_s"))
        work, cost, step_cost = ([r[name] for r in found] for name in ("work", "kill_core_s", "step_core_s"))
        gaps = [(steps - WARM_UP) / count for count in kills if count]
        case = f"{nodes} members, a failure every {mean:g} steps"
        rows += [
            row("jupyter_hyperpod", case, "training efficiency, whole fleet", "ratio", clock),
            row("jupyter_hyperpod", case, "training efficiency, members present", "ratio", members),
            row("jupyter_hyperpod", case, "kills", "kills", kills),
            row("jupyter_hyperpod", case, "steps per kill", "steps", gaps or [0]),
            row("jupyter_hyperpod", case, "undisturbed step", "s", step_s),
            row("jupyter_hyperpod", case, "processor time of an undisturbed step", "core-s", step_cost),
            row("jupyter_hyperpod", case, "processor time that a failure costs", "core-s", cost),
            row("jupyter_hyperpod", case, "undisturbed processor time over all of it", "ratio", work),
        ]
        name = f"efficiency_failure_every_{mean:g}_steps".replace(".", "_")
        bars.append(bar(name, statistics.median(clock), at_least=least))
    return report("abuse", rows, bars)


def efficiency(commits: Sequence[Commit], calm: Sequence[Commit], nodes: int) -> tuple[float, float]:
    """Ideal over real time of the steps after WARM_UP: by the clock, and weighted by the members at every step."""
    ideal_s = _elapsed_s(calm)
    real_s = _elapsed_s(commits)
    times = step_times(commits)
    sizes = {commit.step: commit.world_size for commit in commits}
    member_s = sum(
        (times[step] - times[step - 1]) * sizes[step] for step in sorted(times) if step > WARM_UP and step - 1 in times
    )
    return ideal_s / real_s, ideal_s * nodes / member_s


def _elapsed_s(commits: Sequence[Commit]) -> float:
    times = step_times(commits)
    return times[max(times)] - times[WARM_UP]


def _job(
    store: Store, nodes: int, steps: int, micro_batches: int, failures: tuple[float, random.Random] | None = None
) -> tuple[Observer, float]:
    """Run one job to its end, killing a member whenever the next failure is due; and the processor time of it."""
    wait_for_idle(store)
    before_s = processor_s(store)
    fields = {"name": "abuse", "nodes": nodes, "elastic": f"1:{nodes}", "spares": 1, "max_restarts": 10_000}
    env = language_model_env(store, steps=steps, global_batch=micro_batches)
    watch = submit(store, LANGUAGE_MODEL.read_text(), fields | {"env": env})
    if failures is not None:
        mean, rng = failures
        due = WARM_UP + rng.expovariate(1 / mean)
        while due < steps:
            watch.until(lambda due=due: watch.view["step"] >= due or _over(watch), RUN_TIMEOUT_S)  # type: ignore[misc]
            if _over(watch):
                break
            _kill(watch, rng)
            due += rng.expovariate(1 / mean)
    watch.until_ended(RUN_TIMEOUT_S)
    wait_for_idle(store)  # what has ended is counted by then
    return watch, processor_s(store) - before_s


def _kill(watch: Observer, rng: random.Random) -> None:
    """Kill any member but the last one: whoever loses every holder of the state starts again, which is another test."""
    members = watch.view["members"]
    if len(members) < 2:
        return
    try:
        jobs.fault(watch.store, watch.job_id, "kill", rank=rng.choice(members)["rank"])
    except (Conflict, NotFound):  # it ended or shrank meanwhile
        return


def _over(watch: Observer) -> bool:
    return watch.view["state"] in TERMINAL_STATES


def _commits(watch: Observer) -> list[Commit]:
    return [
        Commit(event.time_s, event.data["step"], 0, event.data["world_size"], event.data["generation"])
        for event in watch.of_kind("step.committed")
    ]
