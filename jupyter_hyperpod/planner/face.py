"""Answers a plan in words and figures, alike for the command line, the magic and the view in JupyterLab."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import SpecError
from ..core.events import Event
from ..core.units import format_duration, format_money, plural
from .calibrate import Measured, measure
from .curve import picture, write_picture
from .goodput import (
    CONVENTIONS,
    PRODUCTIVE,
    CheckpointCosts,
    ClusterModel,
    Downtime,
    Regime,
    RegimeComparison,
    same_reduction,
)
from .outcome import Estimate, Outcome
from .quantities import DAY_S
from .regimes import Trial, simulate_all, trial_of
from .request import AUTOMATIC, MANUAL, PlanRequest, plan_request

OTHER_MANUAL_S = (240 * 60.0, 300 * 60.0, 360 * 60.0)
CAUSES_SHOWN = 8
Row = list[str | tuple[str, str]]
Read = Callable[[str], tuple[str, Sequence[Event]]]
SERVED_RUNS, SERVED_FAILURES = 8, 100_000  # takes some seconds, and the server has other users
HEADERS = ("RECOVERY", ">A FAILURE COSTS", ">TRAINING TIME", ">LONGER BY", ">GOODPUT", ">GPU-HOURS", ">COST")


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table: headers (a leading '>' aligns the column to the right) and rows of texts, or (text, tone)."""

    headers: tuple[str, ...]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class PlanReport:
    """`record` for scripts; for people `title` lines, sheets and closing `lines`; `picture` is SVG where asked for."""

    record: dict[str, Any]
    title: tuple[str, ...]
    sheets: list[Sheet]
    lines: list[str]
    picture: str = ""

    def view(self) -> dict[str, Any]:
        """As JSON, words and picture included, for the view in JupyterLab."""
        sheets = [{"headers": sheet.headers, "rows": list(map(_cells, sheet.rows))} for sheet in self.sheets]
        return {"plan": self.record, "sheets": sheets, "picture": self.picture}


def _cells(row: Row) -> list[dict[str, str]]:
    pairs = [(cell, "") if isinstance(cell, str) else cell for cell in row]
    return [{"text": text, "tone": tone} for text, tone in pairs]


def ask(options: argparse.Namespace, read: Read, drawn: bool = False) -> PlanReport:
    """Answer parsed options; ``read`` returns a named job's id and events, ``drawn`` always draws the picture.

    Raises SpecError for impossible figures, Conflict where the file of ``--plot`` exists.
    """
    measured = measure(*read(options.calibrate)) if options.calibrate is not None else None
    request, trial = plan_request(options, measured), trial_of(options, measured)
    found = answer(request, trial, measured, drawn or options.plot is not None)
    if options.plot is not None:
        write_picture(options.plot, found.picture)
    return found


def answer_body(body: Mapping[str, Any]) -> PlanReport:
    """A request as the server's clients make it: seconds, failures per instance-hour. Raises SpecError."""
    cluster = ClusterModel(body["instances"], body["rate"], body.get("gpus", 8), body["price"])
    request = PlanRequest(
        cluster,
        Downtime(repair=body["manual_s"]),
        Downtime(repair=body["automatic_s"]),
        body["gpu_hours"],
        body.get("convention", PRODUCTIVE),
        CheckpointCosts(body.get("checkpoint_cost_s", 0.0)),
    )
    trial = Trial(SERVED_RUNS, most_failures=SERVED_FAILURES) if body.get("simulate") else None
    return answer(request, trial, drawn=True)


def answer(
    request: PlanRequest, trial: Trial | None = None, measured: Measured | None = None, drawn: bool = False
) -> PlanReport:
    """Answer a request by the closed form and, with a ``trial``, by simulation. Raises SpecError."""
    found = request.compare()
    others = _other_conventions(request)
    told, sheets = record(found, others), [sheet(found)]
    said: list[str] = told["lines"]
    outcomes: dict[str, Outcome] = {}
    if trial is not None:
        outcomes = simulate_all(request, trial)
        sheets += simulation_sheets(outcomes)
        said += [seeded(trial), trial.assumed]
        told["simulation"] = {name: outcome.record() for name, outcome in outcomes.items()}
    if measured is not None:
        said.append(f"Calibrated by {measured.sentence}.")
        told["calibration"] = measured.record()
    return PlanReport(told, title(found), sheets, said, picture(request, outcomes) if drawn else "")


def seeded(trial: Trial) -> str:
    """A sentence with the number of simulations and their seed."""
    often = f"Simulated {'once' if trial.runs == 1 else f'{trial.runs} times'} each from seed {trial.seed}"
    return f"{often}; ± is half of the 95 % confidence interval." if trial.runs > 1 else f"{often}: no interval."


def simulation_sheets(outcomes: Mapping[str, Outcome]) -> list[Sheet]:
    """Tables of the runs' results, of what their time went into, and of what interrupted the survivors' runs."""
    names = list(outcomes)
    results: list[Row] = [
        [
            name,
            f"{_pm(outcome.wall_s, DAY_S, 1)} days" + (" or more" if outcome.unfinished else ""),
            f"{_pm(outcome.goodput, 0.01, 2)} %",
            f"${_pm(outcome.cost, 1e6, 2)} M",
            _pm(outcome.failures, 1, 1),
            _pm(outcome.restarts, 1, 1),
        ]
        for name, outcome in outcomes.items()
    ]
    stages = dict.fromkeys(stage for outcome in outcomes.values() for stage in outcome.stages)
    spent: list[Row] = [[stage, *(_part(outcome, stage) for outcome in outcomes.values())] for stage in stages]
    causes = list(outcomes[names[-1]].incidents.items())
    seen: list[Row] = [[name, _pm(estimate, 1, 1)] for name, estimate in causes[:CAUSES_SHOWN]]
    if rest := causes[CAUSES_SHOWN:]:
        seen.append([(f"{len(rest)} other causes", "quiet"), (f"{sum(e.mean for _, e in rest):.1f}", "quiet")])
    return [
        Sheet(("SIMULATED", ">TRAINING TIME", ">GOODPUT", ">COST", ">FAILURES", ">WHOLE JOB AGAIN"), results),
        Sheet(("TIME GOES INTO", *(f">{name.upper()}" for name in names)), spent),
        Sheet((f"CAUSE, {names[-1].upper()}", ">FAILURES"), seen),
    ]


def _part(outcome: Outcome, stage: str) -> str:
    if stage not in outcome.stages:
        return ""
    share = outcome.share(stage)
    return f"{100 * share:.2f} %" if share >= 0.0001 else "< 0.01 %"


def _pm(estimate: Estimate, unit: float, digits: int) -> str:
    return f"{estimate.mean / unit:,.{digits}f} ± {estimate.margin / unit:,.{digits}f}"


def title(found: RegimeComparison) -> tuple[str, ...]:
    """The title: cluster, failures and work."""
    cluster = found.cluster
    fails = "none of them fails"
    if math.isfinite(cluster.mtbf_s):
        fails = f"{percent(cluster.rate)}/h each: one of them fails every {format_duration(cluster.mtbf_s)}"
    saved = f", a checkpoint every {format_duration(found.interval_s)}" if found.interval_s else ""
    return (
        f"{plural(cluster.instances, 'instance')} of {plural(cluster.gpus, 'GPU')}, {fails}{saved}",
        f"{found.work_gpu_hours:,.0f} GPU-hours of work: {days(found.undisturbed_days)} where nothing fails",
    )


def sheet(found: RegimeComparison) -> Sheet:
    """Both regimes and the difference."""
    manual, automatic = found.manual, found.automatic
    saved: Row = [
        ("saved", "title"),
        format_duration(manual.downtime_s - automatic.downtime_s),
        days(manual.days - automatic.days),
        (percent(found.reduction), "good"),
        "",
        f"{manual.gpu_hours - automatic.gpu_hours:,.0f}",
        (format_money(found.saving), "good"),
    ]
    return Sheet(HEADERS, [_row(MANUAL, manual), _row(AUTOMATIC, automatic), saved])


def lines(found: RegimeComparison, others: dict[str, float | None]) -> list[str]:
    """The result in a sentence, its convention, and its assumptions."""
    said = [
        f"{percent(found.reduction)} less training time and {format_money(found.saving)} saved, where "
        f"{CONVENTIONS[found.convention]} (convention: {found.convention})."
    ]
    if others:
        told = " and ".join(
            f"{'never ends' if value is None else percent(value)} ({name})" for name, value in others.items()
        )
        said.append(f"By the other conventions it is {told}.")
    others_s = [slow_s for slow_s in OTHER_MANUAL_S if slow_s != found.manual.downtime_s]
    if not found.interval_s and (pairs := same_reduction(found, others_s)):
        named = ", ".join(f"{slow_s / 60:.0f} and {quick_s / 60:.0f} min" for slow_s, quick_s in pairs)
        same = f"{100 * found.reduction:.0f} %"
        said.append(f"The figure alone says little: recovery in {named} saves the same {same} of the time.")
    return said


def record(found: RegimeComparison, others: dict[str, float | None]) -> dict[str, Any]:
    """The plan as JSON; ``reductions`` by every convention, None where that run never ends."""
    cluster = found.cluster
    return {
        "convention": found.convention,
        "convention_text": CONVENTIONS[found.convention],
        "instances": cluster.instances,
        "gpus_per_instance": cluster.gpus,
        "rate_per_hour": cluster.rate,
        "mtbf_s": cluster.mtbf_s if math.isfinite(cluster.mtbf_s) else None,
        "gpu_hours": found.work_gpu_hours,
        "price": cluster.price,
        "currency": "$",
        "undisturbed_days": found.undisturbed_days,
        "checkpoint_interval_s": found.interval_s,
        "manual": regime_record(found.manual),
        "automatic": regime_record(found.automatic),
        "reduction": found.reduction,
        "saving": found.saving,
        "reductions": {found.convention: found.reduction, **others},
        "title": list(title(found)),
        "lines": lines(found, others),
    }


def regime_record(regime: Regime) -> dict[str, float]:
    """One regime as JSON."""
    names = ("downtime_s", "stretch", "goodput", "days", "gpu_hours", "cost")
    return {name: getattr(regime, name) for name in names}


def percent(ratio: float) -> str:
    """``32.05 %``, with the digits that carry meaning."""
    value = 100 * ratio
    return f"{value:.4g} %" if abs(value) < 1 else f"{value:.2f} %"


def days(value: float) -> str:
    """``203 days``; hours where it is less than three days."""
    return f"{value:,.0f} days" if value >= 99.5 else f"{value:.1f} days" if value >= 3 else f"{value * 24:.1f} h"


def _row(name: str, regime: Regime) -> Row:
    return [
        name,
        format_duration(regime.downtime_s),
        days(regime.days),
        percent(regime.stretch - 1),
        percent(regime.goodput),
        f"{regime.gpu_hours:,.0f}",
        format_money(regime.cost),
    ]


def _other_conventions(request: PlanRequest) -> dict[str, float | None]:
    """The reduction by every convention but the one in use; None where that run never ends."""
    found: dict[str, float | None] = {}
    for name in CONVENTIONS:
        if name != request.convention:
            try:
                found[name] = replace(request, convention=name).compare().reduction
            except SpecError:
                found[name] = None
    return found
