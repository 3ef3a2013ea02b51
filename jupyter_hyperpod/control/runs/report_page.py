"""The report of a job: one HTML file that needs no server, within two megabytes whatever the job was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.incidents import cause_text
from ...core.units import code_lines, cut, format_bytes, format_duration, format_rate, plural
from ..report import TONES, incident_duration, labels_text, loss_text, steps, throughput
from .charts import Chart, Line, Mark, legend_entry, table_rows
from .markup import block, figure, folded, moment, number, pairs, safe, section, table
from .page import bounded, page
from .resources import charts
from .run_record import LOSS, RATE, RunRecord
from .sentence import what_happened
from .timeline import lanes_svg, not_drawn, time_rows, waterfall_svg

CODE_CHARACTERS = 100_000
TRACEBACK_CHARACTERS = 20_000
METRICS_DRAWN = 20
SESSIONS_DRAWN = 4
ROWS_BEHIND = 40
MARKS = 60
INCIDENTS_SHOWN = 60
STAGES_SHOWN = 12
DECISIONS_SHOWN = 4
NOTES_SHOWN = 100
PACKAGES_SHOWN = 1000
VARIABLES_CHARACTERS = 20_000
TEXT = 400

_SAMPLE = (
    '<span><svg viewBox="0 0 22 10" aria-hidden="true"><rect class="{}" x=".5" y=".5" width="21" height="9"/></svg>'
)
_WORDS = (
    ("member", "{works}"),
    ("spare", "spare"),
    ("lost", "lost"),
    ("recovery", "recovery, with its incident's number"),
)
LEGEND = f'<p class="legend">{"".join(f"{_SAMPLE.format(kind)}{word}</span>" for kind, word in _WORDS)}</p>'


def report_page(record: RunRecord, version: str) -> str:
    """The whole document."""
    view = record.view
    tone = TONES.get(view["state"], "quiet")
    head = (
        f'<header><span class="state {tone}">{safe(view["state"])}</span><h1>{safe(record.job_id)}</h1>'
        f'<p class="lead">{safe(what_happened(record))}</p></header>{_figures(record)}'
    )
    body = [
        head,
        section("Problem", *_problem(record)),
        section("Curves", *_curves(record)),
        section("Nodes over time", _lanes(record)),
        section("Resources", *_resources(record)),
        section("Incidents", _incidents(record)).replace("<section>", '<section class="long">', 1),
        section("Where the time went", _time(record)),
        section("Logged values", _metrics(record)),
        section("Who, when and where", pairs(_who(record)), _notes(record)),
        section("Parameters", _table_of(record.parameters()), _environment(record)),
        section("Code", _code(record)).replace("<section>", '<section class="long">', 1),
        section("Last output", _output(record)).replace("<section>", '<section class="long">', 1),
        section("Final state", _final(record)),
        f"<footer>Written {safe(moment(record.now_s))} by jupyter_hyperpod {safe(version)} from the job's journal"
        f"{'' if record.over else ', while the job ran'}. This page loads nothing and runs no script.</footer>",
    ]
    return page(f"{record.job_id} · {view['state']}", bounded(body))


def _figures(record: RunRecord) -> str:
    view, goodput = record.view, record.time.goodput
    ran = "-" if view["started_s"] is None else format_duration(max(0.0, record.end_s - view["started_s"]))
    rate = throughput(view)
    lost = plural(sum(record.lanes.losses.values()), "loss")
    sizes = f"{view['minimum']} to {view['maximum']} allowed" if view["minimum"] != view["maximum"] else ""
    known = [
        ("steps", steps(view), plural(view["samples"], "sample") if view["samples"] else ""),
        ("loss", loss_text(view), f"session {view['session_number']}" if view["session_number"] > 1 else ""),
        ("goodput", "-" if goodput is None else f"{100 * goodput:.1f} %", "of the members' time in committed steps"),
        ("incidents", f"{record.incident_count:,}", f"{lost} of a member"),
        ("nodes", str(view["world_size"] or view["nodes_wanted"]), sizes),
        ("ran", ran, f"{format_rate(rate, 'sample')} in the last step" if rate else ""),
    ]
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{safe(value)}<small>{safe(more)}</small></dd></div>" for name, value, more in known
    )
    return f'<dl class="facts">{rows}</dl>'


def _problem(record: RunRecord) -> Iterator[str]:
    view = record.view
    if error := view["error"]:
        yield f'<p class="bad"><strong>{safe(error["type"])}</strong>: {safe(error["message"])}</p>'
        trace = "\n".join(str(text) for text in error["traceback"])
        yield f"<pre>{block(trace, TRACEBACK_CHARACTERS)}</pre>" if trace else ""
    warnings = [f"<li>{safe(warning['text'], 2 * TEXT)}</li>" for warning in view["warnings"]]
    warnings += [f"<li>{safe(problem, TEXT)}</li>" for problem in record.problems[:20]]
    if warnings:
        yield f"<h3>Warnings</h3><ul>{''.join(warnings)}</ul>"


def _marks(record: RunRecord, session: int) -> list[Mark]:
    """The incidents at the steps in which they were."""
    if session != record.newest_session:
        return []
    history = record.view["history"]
    found = []
    for at, incident in enumerate(record.incidents[-MARKS:], 1 + max(0, len(record.incidents) - MARKS)):
        before = [point[0] for point in history if point[2] <= incident["started_s"]]
        if history and incident["started_s"] >= history[0][2]:
            took = incident_duration(incident)
            cause = cut(cause_text(incident["cause"]), 80)
            found.append(Mark(before[-1] if before else 0, f"incident {at}: {cause}, {took}"))
    return found


def behind(lines: Sequence[Line], *, headers: Iterable[str] = (), axis: str = "step") -> str:
    """The table behind a picture."""
    columns = (f">{axis}", *(f">{header}" for header in headers or ["value"]))
    rows = ([safe(cell) for cell in row] for row in table_rows(lines, ROWS_BEHIND))
    return folded("These values as a table", table(columns, rows))


def _curves(record: RunRecord) -> Iterator[str]:
    numbers = sorted(record.losses)[-SESSIONS_DRAWN:]
    for session in numbers:
        named = f", session {session}" if len(record.losses) > 1 else ""
        marks = _marks(record, session)
        for name, title, colour in ((LOSS, "Loss", 0), (RATE, "Throughput in samples per second", 2)):
            if not (curve := record.curves.get((session, name))) or not curve.places:
                continue
            lines = [Line(title, curve, colour)]
            alt = f"{title}{named} over {plural(curve.last_step, 'step')}, from {number(curve.places[0].last)} to "
            alt += f"{number(curve.places[-1].last)}, between {number(curve.lowest)} and {number(curve.highest)}"
            told = (
                f"; each place stands for {curve.stride:,} steps, the band is their range" if curve.stride > 1 else ""
            )
            if marks:
                told += "; red: incidents"
            picture = Chart(title, lines, alt, marks).svg()
            yield figure(f"{title}{named}<span>{told}</span>", picture, behind(lines))
    drawn = [name for name in record.metric_names() if _worth_drawing(record, name)]
    small = "".join(_small(record, name, at) for at, name in enumerate(drawn[:METRICS_DRAWN]))
    if small:
        more = len(drawn) - METRICS_DRAWN
        yield f'<h3>Logged values by step</h3><div class="grid2">{small}</div>'
        yield f'<p class="faint">{more} more are in the table of logged values.</p>' if more > 0 else ""


def newest_of(record: RunRecord, name: str) -> int:
    """The newest session in which a value was logged."""
    return max(session for session, known in record.curves if known == name)


def _worth_drawing(record: RunRecord, name: str) -> bool:
    """Whether a value has a curve, and not that of the loss once more."""
    session = newest_of(record, name)
    curve, loss = record.curves[session, name], record.curves.get((session, LOSS))
    again = loss and name.startswith(LOSS) and (curve.last, curve.lowest) == (loss.last, loss.lowest)
    return len(curve.places) > 1 and not again


def _small(record: RunRecord, name: str, at: int) -> str:
    curve = record.curves[newest_of(record, name), name]
    alt = f"{name}: from {number(curve.places[0].last)} to {number(curve.places[-1].last)}"
    lines = [Line(name, curve, (1, 3, 4, 5, 2, 0)[at % 6])]
    return figure(safe(name, 80), Chart(name, lines, alt, small=True).svg(), behind(lines))


def _lanes(record: RunRecord) -> str:
    answers = record.view["deployment"] is not None
    picture = lanes_svg(record.lanes, record.incidents, record.end_s, answers=answers)
    if not picture:
        return ""
    rows = []
    for name in record.lanes.drawn(one["node"] for one in record.incidents if one["node"]):
        spans = record.lanes.lanes[name][-8:]
        told = ", ".join(f"{span.role} {format_duration((span.to_s or span.from_s) - span.from_s)}" for span in spans)
        rows.append([safe(name), str(record.lanes.losses.get(name, 0)), safe(told)])
    table_behind = folded("The nodes as a table", table(("node", ">losses", "what it was, in turn"), rows))
    more = not_drawn(record.lanes)
    return LEGEND.format(works="answers" if answers else "trains") + picture + table_behind + (
        f'<p class="faint">{safe(more)}</p>' if more else ""
    )  # fmt: skip


def _incidents(record: RunRecord) -> str:
    shown = record.incidents[-INCIDENTS_SHOWN:]
    first = len(record.incidents) - len(shown) + 1
    rows = [_incident(record, at, incident) for at, incident in enumerate(shown, first)]
    if not rows:
        return ""
    left_out = record.incident_count - len(shown)
    note = f'<p class="faint">{plural(left_out, "older incident")} left out.</p>' if left_out else ""
    headers = (">", "when", "cause", "node", ">went on after", "what was decided and done")
    return table(headers, rows) + note


def _incident(record: RunRecord, at: int, incident: Mapping[str, Any]) -> list[str]:
    began_s = record.view["started_s"] or record.view["submitted_s"] or incident["started_s"]
    rank = "" if incident["rank"] is None else f", rank {incident['rank']}"
    until_s = incident["resumed_s"] or record.end_s
    made = [reason for time_s, _, reason in record.decisions if incident["started_s"] <= time_s <= until_s + 0.001]
    told = list(dict.fromkeys(made))[:DECISIONS_SHOWN]
    stages = [_stage(stage) for stage in incident["stages"][:STAGES_SHOWN]]
    done = folded(f"{plural(len(incident['stages']), 'stage')}", f"<ul>{''.join(stages)}</ul>") if stages else ""
    reasons = "".join(f'<p class="said">{safe(reason, TEXT)}</p>' for reason in told)
    if not reasons and incident["stages"]:
        reasons = f'<p class="said">{safe(incident["stages"][0]["text"], TEXT)}</p>'
    return [
        str(at),
        f'<span class="whole">+{format_duration(max(0.0, incident["started_s"] - began_s))}</span>',
        safe(cause_text(incident["cause"]), TEXT),
        safe(f"{incident['node'] or '-'}{rank}", 100),
        safe(incident_duration(incident)) if incident["resumed_s"] else "not yet" if not record.over else "never",
        reasons + done,
    ]


def _stage(stage: Mapping[str, Any]) -> str:
    took = "" if stage["took_s"] is None else f" +{format_duration(stage['took_s'])}"
    return f"<li><strong>{safe(stage['stage'], 60)}</strong>{took}: {safe(stage['text'], TEXT)}</li>"


def _resources(record: RunRecord) -> Iterator[str]:
    """What the job's processes used on each node."""
    names, drawn = charts(record.used, record.view["started_s"] or record.view["submitted_s"] or 0.0)
    if not drawn:
        return
    yield "<p>CPU and memory are those of the job's processes on each node"
    yield ".</p>" if len(drawn) < 3 else "; network and GPUs are those of the whole node.</p>"
    if len(names) > 1:
        yield f'<p class="legend">{"".join(legend_entry(at, name) for at, name in enumerate(names))}</p>'
    headers = [safe(name) for name in names]
    small = (
        figure(safe(chart.name), chart.svg(), behind(chart.lines, headers=headers, axis=chart.axis)) for chart in drawn
    )
    yield f'<div class="grid2">{"".join(small)}</div>'


def _time(record: RunRecord) -> str:
    spent = record.time
    if spent.goodput is None:
        return ""
    total = format_duration(spent.total)
    told = (
        f"The members had {safe(total)} of node time; {100 * spent.goodput:.1f} % of it was in steps that were "
        "committed, as far as an undisturbed step takes."
    )
    if spent.spare:
        told += f" Spares stood by for {format_duration(spent.spare)} besides."
    if spent.thinned:
        told += " Of older steps the journal keeps some: what was lost between them, except in incidents, is not known."
    rows = ((safe(n), f"{part * spent.total:.2f}", f"{100 * part:.2f} %") for n, part, _ in time_rows(spent))
    as_table = folded("These times as a table", table(("time", ">node-seconds", ">part"), rows))
    return f"<p>{told}</p>{waterfall_svg(spent)}{as_table}"


def _metrics(record: RunRecord) -> str:
    rows = []
    for name in record.metric_names():
        curve = record.curves[newest_of(record, name), name]
        last = "not a number" if curve.last is None else f"{curve.last:.6g}"
        low, high = ("-", "-") if not curve.places else (f"{curve.lowest:.6g}", f"{curve.highest:.6g}")
        rows.append([safe(name, 120), safe(last), low, high, f"{curve.last_step:,}", f"{curve.count:,}"])
    note = f'<p class="faint">{record.left_out:,} values of further names are left out.</p>' if record.left_out else ""
    headers = ("name", ">last", ">lowest", ">highest", ">at step", ">records")
    return table(headers, rows) + note if rows else note


def _who(record: RunRecord) -> Iterator[tuple[str, str]]:
    view = record.view
    notebook, cell = view["origin"].get("notebook", ""), view["origin"].get("cell_id", "")
    known = [
        ("submitted by", record.owner),
        ("notebook", f"{notebook}, cell {cell}" if notebook and cell else notebook),
        ("submitted", moment(view["submitted_s"])),
        ("started", moment(view["started_s"])),
        ("ended", moment(view["ended_s"])),
        ("backend", view["backend"]),
        ("reason", view["reason"]),
        ("tags", labels_text(view)),
        ("note", view["labels"]["note"]),
        ("generation", str(view["generation"] or "")),
    ]
    yield from ((name, safe(value)) for name, value in known if value and value != "-")


def _notes(record: RunRecord) -> str:
    notes = list(record.notes)[-NOTES_SHOWN:]
    rows = ([safe(moment(time_s)), safe(told, TEXT)] for time_s, told in notes)
    return folded("What was asked for and injected", table(("when", "what"), rows)) if notes else ""


def _table_of(known: Mapping[str, str]) -> str:
    return pairs((safe(name, 120), safe(value, TEXT)) for name, value in known.items()) if known else ""


def _environment(record: RunRecord) -> str:
    known = record.environment()
    parts = [f"<h3>Environment</h3>{_table_of(known)}"] if known else []
    if known_packages := record.packages():
        shown = sorted(known_packages.items(), key=lambda item: item[0].lower())
        rows = ([safe(name, 120), safe(version, 120)] for name, version in shown[:PACKAGES_SHOWN])
        told = f"{plural(len(shown), 'package')} with which it was submitted, with digests of their files"
        parts.append(folded(told, table(("package", "version"), rows)))
    if variables := record.fingerprint.get("variables"):
        told = f"Names of the {plural(len(variables), 'variable')} of the environment from which it was submitted"
        parts.append(folded(told, f"<p>{safe(', '.join(map(str, variables)), VARIABLES_CHARACTERS)}</p>"))
    return "".join(parts)


def _code(record: RunRecord) -> str:
    if record.source is None:
        return '<p class="faint">The source is not kept, or may not be read.</p>'
    digest = record.spec.cell_digest if record.spec else ""
    where = record.spec.filename if record.spec else ""
    told = f"{safe(where)}, {code_lines(record.source)}, SHA-256 <code>{safe(digest)}</code>"
    rows = ([safe(name), f"<code>{safe(digest[:16])}</code>"] for name, digest in record.sources.items())
    brought = folded("Own files that it imported", table(("file", "SHA-256"), rows)) if record.sources else ""
    return f"<p>{told}</p><pre>{block(record.source, CODE_CHARACTERS)}</pre>{brought}"


def _output(record: RunRecord) -> str:
    if not record.output:
        return ""
    lines = "\n".join(line for _, line in record.output)
    return f"<pre>{block(lines, 2 * CODE_CHARACTERS)}</pre>"


def _final(record: RunRecord) -> str:
    known: list[tuple[str, str]] = []
    for session, losses in sorted(record.losses.items())[-SESSIONS_DRAWN:]:
        named = f"session {session}, " if len(record.losses) > 1 else ""
        if losses.digest:
            what = f"<code>{safe(losses.digest)}</code>"
            known.append((f"{named}after step {losses.closed_step}", what))
    if saved := record.view["checkpoint"]:
        size = format_bytes(saved["bytes"])
        known.append(("newest checkpoint", safe(f"step {saved['step']}, {size} in {saved['path']}")))
    note = '<p class="faint">The digest is the SHA-256 of parameters, buffers and optimizer state.</p>'
    return pairs(known) + note if known else ""
