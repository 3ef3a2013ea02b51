"""A sweep as people read it: a line, a table, JSON. Pure but for the journals that the trials have read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...core.units import cut, few, plural
from ..report import TONES, steps
from ..text_tables import Cell, Table, clean
from .metric import number_text, short, values_text
from .plan import described
from .trials import Sweep, SweepTrial

SHOWN = 60  # rows of a table; of more trials the best ones, those that run and the newest
BEST_SHOWN = 20
NONE_YET = (
    "no sweeps yet; `jupyter hyperpod submit FILE --sweep NAME=VALUES` begins one, or `%%hyperpod` with the same "
    "option above a cell"
)
ERRORS_SHOWN = 3  # of trials that failed, below the table
_ORDER = ("succeeded", "pruned", "failed", "stopped", "running", "recovering", "pending")


def summary_line(sweep: Sweep) -> str:
    """One line: how many trials are in which state, and which is the best."""
    counts = Counter(trial.state for trial in sweep.trials)
    parts = [f"{counts[state]} {state}" for state in _ORDER if counts[state]]
    if sweep.missing and not sweep.plan.asks:
        parts.append(f"{len(sweep.missing)} missing")
    told = f"{sweep.id}: {len(sweep.trials)} of {plural(sweep.plan.trials, 'trial')}"
    return clean(" · ".join([told, *parts, *([best_text(sweep)] if sweep.best else [])]))


def best_text(sweep: Sweep) -> str:
    """The best trial so far, in words; "" without one."""
    best = sweep.best
    if best is None:
        return ""
    return (
        f"best {sweep.plan.metric} {number_text(best.value)} in trial {best.number} ({values_text(best.spec.values)})"
    )


def trial_line(sweep: Sweep, trial: SweepTrial) -> str:
    """One line about a trial that has ended."""
    best = " · the best so far" if sweep.best is trial else ""
    told = f" · {sweep.plan.metric} {trial.value_text}" if trial.value_text != "-" else ""
    why = f" · {_why(trial)}" if trial.state == "failed" else ""
    return clean(cut(f"trial {trial.number} ({values_text(trial.spec.values)}): {trial.state}{told}{why}{best}", 240))


def _why(trial: SweepTrial) -> str:
    """Why a trial failed."""
    error = trial.view["error"]
    return f"{error['type']}: {error['message']}" if error else str(trial.view["reason"])


def trials_table(sweep: Sweep, best: SweepTrial | None = None) -> Table:
    """The table of trials; ``best`` is `Sweep.best` where the caller knows it."""
    best = best or sweep.best
    names = list(sweep.plan.space)
    headers = (
        ">TRIAL",
        *(f">{name}" if _are_numbers(sweep, name) else name for name in names),
        "STATE",
        ">STEP",
        f">{sweep.plan.metric}",
        "",
        "JOB",
    )
    rows = []
    for trial in shown_trials(sweep):
        marked = trial is best
        tone = "good" if marked else ""
        rows.append(
            [
                Cell(str(trial.number), tone),
                *(Cell(short(trial.spec.values.get(name, "-")), tone) for name in names),
                Cell(trial.state, "quiet" if trial.state == "pruned" else TONES.get(trial.state, "")),
                Cell(steps(trial.view), "quiet"),
                Cell(trial.value_text, tone),
                Cell("best" if marked else "", tone),
                Cell(trial.job.id, "quiet"),
            ]
        )
    return Table(headers, rows, "no trial has been submitted")


def _are_numbers(sweep: Sweep, name: str) -> bool:
    return all(type(trial.spec.values.get(name)) in (int, float) for trial in sweep.trials)


def shown_trials(sweep: Sweep) -> list[SweepTrial]:
    """All trials, or of very many: the best, those that run, and the newest, in the order of their numbers."""
    if len(sweep.trials) <= SHOWN:
        return list(sweep.trials)
    ended = [trial for trial in sweep.trials if trial.value is not None and trial.view["state"] == "succeeded"]
    ended.sort(key=lambda trial: trial.value or 0.0, reverse=sweep.plan.maximize)
    running = [trial for trial in sweep.unfinished if trial.view["state"] != "pending"]
    chosen = {trial.number for trial in [*ended[:BEST_SHOWN], *running[:BEST_SHOWN]]}
    for trial in reversed(sweep.trials):
        if len(chosen) >= SHOWN:
            break
        chosen.add(trial.number)
    return [trial for trial in sweep.trials if trial.number in chosen]


def end_lines(sweep: Sweep, command: str) -> list[str]:
    """What there is to say when nothing runs any more: what failed, and how to go on. ``command``: of the face."""
    lines = []
    failed = [trial for trial in sweep.trials if trial.state == "failed"]
    if failed:
        jobs = few([trial.job.id for trial in failed])
        said = f"{plural(len(failed), 'trial')} failed: {jobs}; {command} logs {failed[0].job.id} says more"
        lines += [said, *(f"  {trial_line(sweep, trial)}" for trial in failed[:ERRORS_SHOWN])]
    if doubt := next((trial.doubt for trial in sweep.trials if trial.doubt), ""):
        lines.append(f"{doubt}; give what you mean a name of its own, and name it with --metric")
    if best := sweep.best:
        lines.append(f"{best_text(sweep)}: {command} report {best.job.id}, {command} rerun {best.job.id}")
    elif any(trial.view["state"] == "succeeded" for trial in sweep.trials):
        known = sorted({name for trial in sweep.trials for name in trial.view["metrics"]})
        logged = f"they logged {few(known, 8)}" if known else "they logged nothing"
        odd = sorted({trial.value_text for trial in sweep.trials} & {"nan", "inf", "-inf"})
        logged = f"there is {few(odd)}, which is never the best" if odd else logged
        lines.append(
            f"no trial has a number for {sweep.plan.metric!r}; {logged}: name one with --metric, or log it with "
            f"session.log({sweep.plan.metric}=…)"
        )
    if same := same_line(sweep):
        lines.append(same)
    if sweep.missing and not sweep.unfinished:
        are = "is" if len(sweep.missing) == 1 else "are"
        lines.append(
            f"{plural(len(sweep.missing), 'trial')} of {sweep.id} {are} not there: never submitted, or deleted; "
            f"{command} sweep resume {sweep.id} submits what is missing"
        )
    return lines


def same_line(sweep: Sweep) -> str:
    """What to say where all trials that succeeded have the same value; "" where there is nothing to say."""
    found = [trial.value for trial in sweep.trials if trial.view["state"] == "succeeded"]
    if len(found) < 2 or found[0] is None or set(found) != {found[0]}:
        return ""
    names = " and ".join(sweep.plan.space)
    value = f"{sweep.plan.metric} {number_text(found[0])}"
    return f"all {len(found)} trials that succeeded have the same {value}: does the code use {names}?"


def hidden_line(sweep: Sweep) -> str:
    """How many trials the table leaves out; "" for none."""
    left_out = len(sweep.trials) - min(len(sweep.trials), SHOWN)
    return f"{plural(left_out, 'more trial')}: sweep show --json has all" if left_out else ""


def record(sweep: Sweep) -> dict[str, Any]:
    """A sweep for programs."""
    best = sweep.best
    return {
        "id": sweep.id,
        "plan": sweep.plan.to_json(),
        "sentence": described(sweep.plan),
        "best": best.number if best else None,
        "missing": sweep.missing,
        "trials": [trial_record(trial) for trial in sweep.trials],
    }


def trial_record(trial: SweepTrial) -> dict[str, Any]:
    """A trial for programs."""
    told = {"number": trial.number, "job": trial.job.id, "values": dict(trial.spec.values), "state": trial.state}
    return told | {
        "step": trial.view["step"],
        "value": trial.value,
        "value_text": trial.value_text,
        "reason": trial.view["reason"],
    }


def overview(sweeps: Sequence[Sweep]) -> Table:
    """The table of all sweeps, newest first."""
    rows = []
    for sweep in sweeps:
        best = sweep.best
        state = "running" if sweep.unfinished else "incomplete" if sweep.missing else "ended"
        names = ", ".join(sweep.plan.space)
        told = [sweep.plan.metric, number_text(best.value) if best else "-", best.job.id if best else "-"]
        ended = sum(trial.over for trial in sweep.trials)
        row: list[str | tuple[str, str]] = [sweep.id, (state, TONES.get(state, "quiet"))]
        rows.append([*row, f"{ended}/{sweep.plan.trials}", names, *told])
    headers = ("ID", "STATE", ">ENDED", "NAMES", "METRIC", ">BEST", "BEST JOB")
    return Table(headers, rows, NONE_YET)
