"""The comparison of jobs as one HTML file that needs no server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...core.units import plural
from ...policy.identity import DIFFERENT, SAME
from ..report import TONES
from .charts import Chart, Line, Mark, legend_entry
from .markup import figure, folded, moment, number, safe, section, table
from .page import bounded, page
from .report_page import METRICS_DRAWN, behind
from .run_record import LOSS, RATE, RunRecord
from .sentence import what_happened
from .series import Series
from .side_by_side import JobComparison, Pair, curve_names, source_difference

NAMES_SHOWN = 300
TEXT = 300


def compare_page(found: JobComparison, version: str) -> str:
    """The whole document."""
    records = found.records
    names = " and ".join(record.job_id for record in records)
    body = [
        f'<header><span class="state quiet">comparison</span><h1>{safe(names)}</h1></header>',
        section("Until which step they are the same", *map(_verdict, found.pairs), _jobs(records)),
        section("Curves", _legend(records), *_curves(found)),
        section("What differs", *_differences(found)),
        section("Code", *_code(records)).replace("<section>", '<section class="long">', 1),
        section("Values side by side", _metrics(found)),
        f"<footer>Written {safe(moment(records[0].now_s))} by jupyter_hyperpod {safe(version)} from the journals of "
        "these jobs. This page loads nothing and runs no script.</footer>",
    ]
    return page(f"{names} compared", bounded(body))


def _verdict(pair: Pair) -> str:
    verdicts = {decision.value.verdict for decision in pair.sessions.values()}
    tone = "bad" if DIFFERENT in verdicts else "good" if SAME in verdicts else "quiet"
    return f'<p class="verdict {tone}">{safe(pair.sentence)}.</p>'


def _jobs(records: Sequence[RunRecord]) -> str:
    rows = []
    for record in records:
        state = record.view["state"]
        tone = TONES.get(state, "quiet")
        submitted = moment(record.view["submitted_s"])
        rows.append(
            [
                f'<strong class="whole">{safe(record.job_id)}</strong>',
                f'<span class="whole {tone}">{safe(state)}</span>',
            ]
            + [f'<span class="whole">{safe(submitted)}</span>', safe(what_happened(record))]
        )
    return table(("job", "state", "submitted", "what happened"), rows)


def _legend(records: Sequence[RunRecord]) -> str:
    entries = "".join(legend_entry(at, record.job_id) for at, record in enumerate(records))
    return f'<p class="legend">{entries}</p>'


def _curves(found: JobComparison) -> Iterator[str]:
    marks = list(_marks(found))
    small: list[str] = []
    for name in curve_names(found.records):
        lines = _lines(found.records, name)
        if not any(line.series.places for line in lines):
            continue
        own = {LOSS: "Loss", RATE: "Throughput in samples per second"}.get(name)
        alt = f"{own or name}: " + ", ".join(
            f"{line.name} ends at {number(line.series.places[-1].last)}" for line in lines if line.series.places
        )
        columns = [line.name for line in lines]
        if own:
            told = "; blue: the first step that differs" if marks and name == LOSS else ""
            picture = Chart(own, lines, alt, marks if name == LOSS else ()).svg()
            yield figure(f"{own}<span>{told}</span>", picture, behind(lines, headers=map(safe, columns)))
        elif any(len(line.series.places) > 1 for line in lines) and len(small) < METRICS_DRAWN:
            picture = Chart(name, lines, alt, small=True).svg()
            small.append(figure(safe(name, 80), picture, behind(lines, headers=map(safe, columns))))
    if small:
        yield f'<h3>Logged values by step</h3><div class="grid2">{"".join(small)}</div>'


def _lines(records: Sequence[RunRecord], name: str) -> list[Line]:
    """One line per job, of its newest session that has this value."""
    found = []
    for at, record in enumerate(records):
        sessions = [session for session, known in record.curves if known == name]
        series = record.curves[max(sessions), name] if sessions else Series()
        found.append(Line(record.job_id, series, at))
    return found


def _marks(found: JobComparison) -> Iterator[Mark]:
    for pair in found.pairs:
        for decision in list(pair.sessions.values())[-1:]:
            if decision.value.differs_at is not None:
                yield Mark(decision.value.differs_at, decision.reason, "info")


def _differences(found: JobComparison) -> Iterator[str]:
    titles = {"parameters": "Parameters", "environment": "Environment", "packages": "Packages", "code": "Code"}
    headers = ("name", *(safe(record.job_id) for record in found.records))
    for part, title in titles.items():
        differing, equal = found.differences[part], found.equal(part)
        if not differing and (not equal or part == "code"):
            continue  # the source is compared below
        equal = f"equal: {equal}" if equal else ""
        if not differing:
            yield f'<h3>{title}</h3><p class="faint">No difference; {equal}.</p>'
            continue
        shown, changes = list(_rows(differing)), found.changes if part == "packages" else {}
        if changes:
            shown = [[*row, safe(changes.get(name, ""), TEXT)] for row, name in zip(shown, differing, strict=False)]
        more = len(differing) - NAMES_SHOWN
        note = f"{more:,} more are left out" if more > 0 else ""
        yield f"<h3>{title}</h3>{table((*headers, *['what that may change'] * bool(changes)), shown)}"
        told = ", ".join(filter(None, [equal, note]))
        yield f'<p class="faint">{told}.</p>' if told else ""


def _rows(differing: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    for name in list(differing)[:NAMES_SHOWN]:
        yield [safe(name, TEXT), *(safe(value, TEXT) for value in differing[name])]


def _code(records: Sequence[RunRecord]) -> Iterator[str]:
    first = records[0]
    for other in records[1:]:
        lines = source_difference(first, other)
        if not lines:
            yield f"<p>The source of {safe(first.job_id)} and of {safe(other.job_id)} is the same.</p>"
            continue
        painted = "\n".join(map(_painted, lines))
        told = f"{safe(first.job_id)} and {safe(other.job_id)}: {plural(len(lines), 'line')} of differences"
        yield folded(told, f"<pre>{painted}</pre>", shown=True)


def _painted(line: str) -> str:
    kind = {"+": "plus", "-": "minus"}.get(line[:1])
    text = safe(line.expandtabs(4), 1000)
    return f'<span class="{kind}">{text}</span>' if kind else text


def _metrics(found: JobComparison) -> str:
    headers = ("", *(f">{safe(record.job_id)}" for record in found.records))
    rows = []
    for name, values in found.metrics.items():
        kind = ' class="differs"' if len(set(values)) > 1 else ""
        rows.append([f"<span{kind}>{safe(name, 120)}</span>", *(safe(value, 60) for value in values)])
    return table(headers, rows)
