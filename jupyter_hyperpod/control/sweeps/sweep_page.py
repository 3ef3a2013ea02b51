"""The report of a sweep as one HTML file that needs no server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from ...core.errors import HyperpodError
from ...core.units import plural
from ..report import TONES, steps
from ..runs import run_record
from ..runs.charts import COLOURS, DASHES, Chart, Line
from ..runs.markup import block, figure, folded, moment, pairs, safe, section, table
from ..runs.page import bounded, page
from ..runs.run_record import LOSS, RunRecord
from ..runs.sentence import what_happened
from ..runs.series import Series
from .metric import number_text, values_text
from .parallel import DrawnTrial, parallel_coordinates
from .plan import described
from .sweep_table import best_text, trial_line
from .trials import Sweep, SweepTrial

SOURCE = 100_000


def sweep_page(sweep: Sweep, version: str) -> str:
    """The whole document."""
    best = sweep.best
    good = sorted(_counted(sweep), key=lambda trial: trial.value or 0.0, reverse=sweep.plan.maximize)
    records = list(_records(sweep, good[:COLOURS]))
    state = "running" if sweep.unfinished else "incomplete" if sweep.missing else "ended"
    lead = best_text(sweep) or "no trial has a value yet"
    body = [
        f'<header><span class="state {TONES.get(state, "quiet")}">sweep, {state}</span><h1>{safe(sweep.id)}</h1>'
        f'<p class="lead">{safe(lead[0].upper() + lead[1:])}.</p></header>',
        _facts(sweep),
        section("All trials", _picture(sweep, best)),
        section("Best run", *_best(sweep, best, records)).replace("<section>", '<section id="best">', 1),
        section("Losses of the best trials", *_curves(records)),
        section("Trials", _trials(sweep, best)).replace("<section>", '<section class="long">', 1),
        f"<footer>{safe(described(sweep.plan))}. Written {safe(moment(time.time()))} by jupyter_hyperpod "
        f"{safe(version)} from the journals of these jobs. This page loads nothing and runs no script.</footer>",
    ]
    return page(f"{sweep.id}: {plural(sweep.plan.trials, 'trial')}", bounded(body))


def _counted(sweep: Sweep) -> list[SweepTrial]:
    return [trial for trial in sweep.trials if trial.counted is not None]


def _facts(sweep: Sweep) -> str:
    counts = Counter(trial.state for trial in sweep.trials)
    shown = [("trials", f"{len(sweep.trials)} of {sweep.plan.trials}")]
    shown += [(state, str(count)) for state, count in counts.most_common()]
    if best := sweep.best:
        shown.append((f"best {sweep.plan.metric}", number_text(best.value)))
    return f'<dl class="facts">{"".join(f"<div><dt>{safe(n)}</dt><dd>{safe(v)}</dd></div>" for n, v in shown)}</dl>'


def _picture(sweep: Sweep, best: SweepTrial | None) -> str:
    drawn = [
        DrawnTrial(
            trial.number,
            trial.spec.values,
            trial.counted,
            trial_line(sweep, trial),
            trial is best,
        )
        for trial in sweep.trials
    ]
    names = ", ".join(sweep.plan.space)
    alt = f"Parallel coordinates of {plural(len(drawn), 'trial')}: {names} and {sweep.plan.metric}; {best_text(sweep)}"
    told = "<span>; orange: the best; dashed: no value. A line leads to its trial.</span>"
    picture = parallel_coordinates(sweep.plan.space, sweep.plan.metric, sweep.plan.maximize, drawn, alt)
    return figure(f"Values and {safe(sweep.plan.metric)}{told}", picture)


def _records(sweep: Sweep, best: list[SweepTrial]) -> Iterator[tuple[SweepTrial, RunRecord]]:
    for trial in best:
        try:
            yield trial, run_record.read(sweep.store, trial.job.id, output=False)
        except HyperpodError:
            continue


def _best(sweep: Sweep, best: SweepTrial | None, records: list[tuple[SweepTrial, RunRecord]]) -> Iterator[str]:
    if best is None:
        return
    job = safe(best.job.id)
    shown = [("trial", str(best.number)), ("job", f"<strong>{job}</strong>")]
    shown += [(safe(name), safe(value)) for name, value in best.spec.values.items()]
    shown.append((safe(sweep.plan.metric), safe(repr(best.value))))
    found = next((record for trial, record in records if trial is best), None)
    if found is not None:
        shown.append(("what happened", safe(what_happened(found))))
    shown.append(("its own report", f"<code>jupyter hyperpod report {job}</code>"))
    shown.append(("again, bit for bit", f"<code>jupyter hyperpod rerun {job}</code>"))
    yield pairs(shown)
    if found is not None and found.source is not None:
        yield folded("Its code, with its values", f"<pre>{block(found.source.strip(chr(10)), SOURCE)}</pre>")


def _curves(records: list[tuple[SweepTrial, RunRecord]]) -> Iterator[str]:
    """The losses of the best trials over one another."""
    lines, entries = [], []
    for at, (trial, record) in enumerate(records):
        sessions = [session for session, known in record.curves if known == LOSS]
        series = record.curves[max(sessions), LOSS] if sessions else Series()
        if series.places:
            name = f"trial {trial.number} ({values_text(trial.spec.values)})"
            colour = {0: 1, 1: 0}.get(at, at)  # the best has the colour that it has in the picture of all trials
            lines.append(Line(name, series, colour))
            kind, dashes = f"line stroke{colour % COLOURS}{' wide' * (at == 0)}", DASHES[at % COLOURS]
            drawn = f'<path class="{kind}" d="M0 5h22" stroke-dasharray="{dashes}"/>'
            entries.append(f'<span><svg viewBox="0 0 22 10" aria-hidden="true">{drawn}</svg>{safe(name)}</span>')
    if lines:
        alt = "Losses by step: " + ", ".join(f"{line.name} ends at {line.series.places[-1].last:.6g}" for line in lines)
        yield f'<p class="legend">{"".join(entries)}</p>' + figure("Loss by step", Chart("loss", lines, alt).svg())


def _trials(sweep: Sweep, best: SweepTrial | None) -> str:
    names = list(sweep.plan.space)
    rows = []
    for trial in sweep.trials:
        number = f'<span id="trial-{trial.number}">{trial.number}</span>'
        if trial is best:
            number = f'<a href="#best">{number} best</a>'
        tone = "quiet" if trial.state == "pruned" else TONES.get(trial.state, "quiet")
        rows.append(
            [
                number,
                *(safe(trial.spec.values.get(name, "-"), 60) for name in names),
                f'<span class="whole {tone}">{safe(trial.state)}</span>',
                safe(steps(trial.view)),
                safe(trial.value_text),
                f'<span class="whole">{safe(trial.job.id)}</span>',
            ]
        )
    headers = ("trial", *map(safe, names), "state", ">step", f">{safe(sweep.plan.metric)}", "job")
    return table(headers, rows)
