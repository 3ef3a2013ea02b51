"""`bench adoption`: every case on one calm node, and under kills, growth and shrinking: the same bits, or refused."""

from __future__ import annotations

import os
import random
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_hyperpod.bench.laboratory import Observer, laboratory, progress, submit, wait_for_idle
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError, Conflict, NotFound
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.storage.store import Store

from ..kept import Kept, Result
from .cases import Case, cases

OURS = "jupyter_hyperpod"
NODES = 4
PAUSE_S = 0.03
CASES, WORKING, CHANGED = 60, 55, 5  # bars
# Makes steps long enough to be hit. It is not compiled as the cell's own code, so the session does not look at it.
PACE = """
import time
from jupyter_hyperpod.runtime.session.loop import Step
run = Step.run
def slower(*given, **named):
    time.sleep({pause_s})
    return run(*given, **named)
Step.run = slower
"""
Disturbance = Callable[[Observer, random.Random, int], None]


def run(only: str = "", seed: int = 0, keep: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Run the cases whose names contain ``only``; ``seed`` draws the step and the member of each fault.

    With the directory ``keep`` it may be interrupted: cases that are found there are not run again.
    """
    found, kept = cases(only), Kept(keep, seed=seed)
    if todo := [case for case in found if case.name not in kept]:
        with laboratory(NODES, spares=1) as store:
            for case in todo:
                kept.add(case.name, judged(store, case, seed))
                progress(_line(case, kept[case.name]))
    return _report(found, [kept[case.name] for case in found], all_cases=not only)


def judged(store: Store, case: Case, seed: int, disturbances: dict[str, Disturbance] | None = None) -> Result:
    """Run one case calm and disturbed. ``problem`` is empty where it did what its file says."""
    calm = _submit(store, case, 1)
    calm.until_ended()
    if case.refused:
        return {"changed": case.changed_lines, "problem": _not_refused(calm, case) or _refused_by_many(store, case)}
    if calm.view["state"] != "succeeded":
        return {"changed": case.changed_lines, "problem": f"calm: {calm.view['state']}: {calm.view['reason']}"}
    if not results(calm):
        return {"changed": case.changed_lines, "problem": 'it printed no line that begins with "result"'}
    problems = []
    for name, disturb in (disturbances or DISTURBANCES).items():
        if difference := _disturbed(store, case, calm, disturb, random.Random(f"{seed} {case.name} {name}")):
            problems.append(f"{name}: {difference}")
    return {"changed": case.changed_lines, "problem": "; ".join(problems)}


def _disturbed(store: Store, case: Case, calm: Observer, disturb: Disturbance, rng: random.Random) -> str:
    steps = max(calm.losses(), default=0)
    watch = _submit(store, case, 1 if disturb is grown else NODES)
    try:
        disturb(watch, rng, steps)
        watch.until_ended()
    except ClusterError as error:
        jobs.stop(store, watch.job_id)
        watch.until_ended()
        return f"stuck ({watch.job_id}): {error}"
    finally:
        wait_for_idle(store)
    return differences(watch, calm)


def _submit(store: Store, case: Case, nodes: int) -> Observer:
    pace = PACE.format(pause_s=0 if nodes == 1 else PAUSE_S)
    first = f'exec(compile({pace!r}, "<frozen pace>", "exec"), {{}}); '
    folder = tempfile.mkdtemp(prefix="case-", dir=store.root)  # what the case writes goes with the store
    fields = {"name": case.name, "nodes": nodes, "elastic": f"1:{NODES}", "spares": 1, "working_directory": folder}
    return submit(store, first + case.ours, fields)


# ---- disturbances --------------------------------------------------------------------------------------------------


def killed(watch: Observer, rng: random.Random, steps: int) -> None:
    """A random member is killed at a random step."""
    _reach(watch, rng.randrange(max(1, steps - 2)))
    _kill(watch, rng)


def grown(watch: Observer, rng: random.Random, steps: int) -> None:
    """A job of one member grows to all nodes."""
    _reach(watch, rng.randrange(max(1, steps // 2)))
    _scale(watch, NODES)


def shrunk(watch: Observer, rng: random.Random, steps: int) -> None:
    """A job of all nodes shrinks to one."""
    _reach(watch, rng.randrange(1, max(2, steps - 2)))
    _scale(watch, 1)


def worn(watch: Observer, rng: random.Random, steps: int) -> None:
    """Rank 0 is killed, then another member; then the job shrinks to two and grows again."""
    for fraction, change in zip((0.1, 0.4, 0.6, 0.75), (0, None, 2, NODES), strict=True):
        if not _reach(watch, int(steps * fraction)):
            return
        if change:
            _scale(watch, change)
        else:
            _kill(watch, rng, rank=change)


DISTURBANCES: dict[str, Disturbance] = {"killed": killed, "grown": grown, "shrunk": shrunk}


def _reach(watch: Observer, step: int) -> bool:
    """Wait for a committed step; False where the job is over."""
    watch.until(lambda: watch.view["step"] >= step or watch.view["state"] in TERMINAL_STATES, 60.0)
    watch.until(lambda: bool(watch.view["members"]) or watch.view["state"] in TERMINAL_STATES, 60.0)
    return watch.view["state"] not in TERMINAL_STATES


def _kill(watch: Observer, rng: random.Random, rank: int | None = None) -> None:
    members = len(watch.view["members"])
    try:
        jobs.fault(watch.store, watch.job_id, "kill", rank=rng.randrange(members) if rank is None else rank)
    except (Conflict, NotFound):  # it has ended, or the member is gone
        return


def _scale(watch: Observer, nodes: int) -> None:
    try:
        jobs.scale(watch.store, watch.job_id, nodes)
    except Conflict:  # it has ended
        return


# ---- what came of it -----------------------------------------------------------------------------------------------


def results(watch: Observer) -> set[str]:
    """What the ranks printed as their results, without repetitions."""
    texts: dict[Any, str] = {}
    for event in watch.of_kind("output.written"):
        if event.data["stream"] == "stdout":
            texts[event.data["rank"]] = texts.get(event.data["rank"], "") + event.data["text"]
    return {line for text in texts.values() for line in text.splitlines() if line.startswith("result")}


def differences(watch: Observer, calm: Observer) -> str:
    """Empty where losses, final state and printed results are the same bits, and every step counted once."""
    return "; ".join(_differences(watch, calm))


def _differences(watch: Observer, calm: Observer) -> Iterator[str]:
    if watch.view["state"] != calm.view["state"]:
        yield f"{watch.view['state']} ({watch.job_id}): {watch.view['reason']}"
        return
    ours, theirs = watch.losses(), calm.losses()
    if other := [step for step in theirs if ours.get(step) != theirs[step]]:
        yield f"DIFFERENT ({watch.job_id}): other losses from step {min(other)} on"
    if watch.view["digest"] != calm.view["digest"]:
        yield f"DIFFERENT ({watch.job_id}): another final state"
    if results(watch) != results(calm):
        yield f"DIFFERENT ({watch.job_id}): it printed {sorted(results(watch))}, expected {sorted(results(calm))}"
    if problems := audit(watch.events).problems:
        yield f"DIFFERENT ({watch.job_id}): {problems[0]}"


def _not_refused(watch: Observer, case: Case) -> str:
    """Empty where the job was refused before its first step counted, in the words of its file."""
    if watch.view["state"] != "failed":
        return f"{watch.view['state']}, and its file says that it is refused"
    if watch.losses():
        return f"refused only after step {max(watch.losses())}: {watch.view['reason']}"
    if not re.search(case.refused, str(watch.view["reason"])):
        return f"refused in other words: {watch.view['reason']}"
    return ""


def _refused_by_many(store: Store, case: Case) -> str:
    watch = _submit(store, case, NODES)
    watch.until_ended()
    wait_for_idle(store)
    return _not_refused(watch, case)


def _line(case: Case, result: Result) -> str:
    outcome = result["problem"] or ("refused in words" if case.refused else "the same bits")
    return f"{case.name}: {result['changed']} changed lines, {outcome}"


def _report(found: list[Case], judgements: list[Result], all_cases: bool) -> dict[str, Any]:
    pairs = list(zip(found, judgements, strict=True))
    rows = [row(OURS, case.name, _outcome(case, result), "lines", [result["changed"]]) for case, result in pairs]
    different = sum("DIFFERENT" in result["problem"] for result in judgements)
    sound = [case for case, result in pairs if not result["problem"]]
    working = sum(not case.refused for case in sound)
    changed = statistics.median(result["changed"] for case, result in pairs if not case.refused or len(pairs) == 1)
    bars = [
        bar("silent_differences", different, 0),
        bar("cases_that_do_otherwise_than_their_files_say", len(found) - len(sound), 0),
        bar("changed_lines_median", changed, CHANGED),
    ]
    if all_cases:
        bars += [bar("cases", len(found), at_least=CASES), bar("working_to_the_bit", working, at_least=WORKING)]
    details = {case.name: {"title": case.title, **result} for case, result in pairs}
    return report("adoption", rows, bars) | {"cases": details}


def _outcome(case: Case, result: Result) -> str:
    if result["problem"]:
        return "different" if "DIFFERENT" in result["problem"] else "fails"
    return "refused in words" if case.refused else "the same bits"
