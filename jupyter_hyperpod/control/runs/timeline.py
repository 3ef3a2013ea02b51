"""Draws nodes over time with their recoveries, and what took the nodes' time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.incidents import cause_text
from ...core.units import format_duration, plural
from .charts import Scale, scale, ticks
from .lost_time import LostTime
from .markup import safe
from .node_lanes import DRAWN, LOST, MEMBER, NodeLanes, Span

WIDE = 880
_LABEL, _ROW, _GAP = 128, 16, 6
_TOP, _AXIS = 26, 26
_BADGES_APART = 17
_BAR = 18
_NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)

HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="hatch" d="M0 0V6"/></pattern></defs>'
)


def lanes_svg(lanes: NodeLanes, incidents: Sequence[Mapping[str, Any]], end_s: float, *, answers: bool) -> str:
    """Nodes over time; the numbers of the incidents are those of their table. Empty before there was any node."""
    names = lanes.drawn(incident["node"] for incident in incidents if incident["node"])
    spans = [span for name in names for span in lanes.lanes[name]]
    if not spans:
        return ""
    from_s = min(span.from_s for span in spans)
    to_s = max(end_s, from_s + 0.001)
    across = scale(from_s, to_s, _LABEL, WIDE - 12)
    bottom = _TOP + len(names) * (_ROW + _GAP)
    roles = {MEMBER: "answers" if answers else "trains", LOST: "lost"}
    parts = [
        f'<svg viewBox="0 0 {WIDE} {bottom + _AXIS}" role="img" '
        f'aria-label="{safe(_alt(lanes, len(incidents), to_s - from_s))}">{HATCH}'
    ]
    for at, name in enumerate(names):
        y = _TOP + at * (_ROW + _GAP)
        label = name if len(name) <= 19 else f"…{name[-18:]}"
        parts.append(f'<text x="{_LABEL - 10}" y="{y + 12}" text-anchor="end">{safe(label)}</text>')
        parts.append(f'<rect class="empty" x="{_LABEL}" y="{y}" width="{WIDE - 12 - _LABEL}" height="{_ROW}" rx="2"/>')
        parts += [_span(span, name, roles.get(span.role, span.role), across, y) for span in lanes.lanes[name]]
    parts += _recoveries(incidents, across, bottom, end_s)
    parts += _axis(from_s, to_s, across, bottom)
    return "".join([*parts, "</svg>"])


def _alt(lanes: NodeLanes, incidents: int, seconds: float) -> str:
    lost = sum(lanes.losses.values())
    nodes = plural(len(lanes.lanes) + lanes.left_out, "node")
    return f"{nodes} over {format_duration(seconds)}: {plural(incidents, 'incident')}, {plural(lost, 'loss')} of a node"


def not_drawn(lanes: NodeLanes) -> str:
    """How many nodes the picture leaves out, as a sentence; empty for none."""
    more = max(0, len(lanes.lanes) - DRAWN) + lanes.left_out
    return f"{plural(more, 'node')} more are not drawn: those with incidents come first." if more > 1 else ""


def _span(span: Span, node: str, word: str, across: Scale, y: float) -> str:
    to_s = span.from_s if span.to_s is None else span.to_s
    left, right = across(span.from_s), across(to_s)
    told = safe(f"{node}: {word} for {format_duration(to_s - span.from_s)}")
    return (
        f'<rect class="{safe(span.role)}" x="{left:.1f}" y="{y + (span.role != MEMBER) * 0.5:g}" '
        f'width="{max(0.8, right - left):.1f}" height="{_ROW - (span.role != MEMBER):g}" rx="1.5">'
        f"<title>{told}</title></rect>"
    )


def _recoveries(incidents: Sequence[Mapping[str, Any]], across: Scale, bottom: float, end_s: float) -> Iterator[str]:
    last = -1e9
    for at, incident in enumerate(incidents, 1):
        left = across(incident["started_s"])
        right = across(end_s if incident["resumed_s"] is None else incident["resumed_s"])
        width, told = max(2.0, right - left), safe(f"incident {at}: {cause_text(incident['cause'])}", 100)
        yield (
            f'<g><rect class="recovery" x="{left - 0.5:.1f}" y="{_TOP - 4}" width="{width:.1f}" '
            f'height="{bottom - _TOP + 4}"/><title>{told}</title>'
        )
        if left - last >= _BADGES_APART:  # else the numbers would cover each other
            yield f'<text class="bad" x="{left:.1f}" y="{_TOP - 9}" text-anchor="middle" font-weight="600">{at}</text>'
            last = left
        yield "</g>"


def _axis(from_s: float, to_s: float, across: Scale, bottom: float) -> Iterator[str]:
    span = to_s - from_s
    step = next((nice for nice in _NICE_S if span / nice <= 8), None)
    marks = [step * at for at in range(int(span // step) + 1)] if step and span >= 1 else ticks(0.0, span, 6)
    for seconds in marks:
        x = across(from_s + seconds)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        text = "0" if seconds == 0 else format_duration(seconds).replace(".0 s", " s")
        yield f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>'


def time_rows(spent: LostTime) -> list[tuple[str, float, str]]:
    """What the nodes' time was, the part of each, and the class of its colour: all of it, the losses, what is left."""
    total = spent.total or 1.0
    lost = sorted(spent.lost.items(), key=lambda item: -item[1])
    rows = [(cause, seconds / total, "took") for cause, seconds in lost]
    return [("all of the members' time", 1.0, "spare"), *rows, ("in committed steps", spent.useful / total, "member")]


def waterfall_svg(spent: LostTime) -> str:
    """From all node-seconds of the members down to those in committed steps. Empty where there is nothing to divide."""
    if spent.goodput is None:
        return ""
    label, right = 210, WIDE - 190
    rows = time_rows(spent)
    across = scale(0.0, 1.0, label, right)
    said = ", ".join(f"{name} {_percent(part)}" for name, part, _ in rows[1:])
    height = len(rows) * (_BAR + 8) + 4
    parts = [f'<svg viewBox="0 0 {WIDE} {height}" role="img" aria-label="Where the time went: {safe(said)}">']
    left_over = 1.0
    for at, (name, part, kind) in enumerate(rows):
        y = at * (_BAR + 8) + 2
        if kind == "took":
            left, left_over = left_over - part, left_over - part
        else:
            left = 0.0
        x, width = across(left), max(1.0, across(left + part) - across(left))
        shown = name if len(name) <= 34 else f"{name[:33]}…"
        took = format_duration(part * spent.total)
        parts.append(
            f'<text x="{label - 10}" y="{y + 13}" text-anchor="end">{safe(shown)}</text>'
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2">'
            f"<title>{safe(name)}: {took}</title></rect>"
            f'<text x="{right + 12}" y="{y + 13}">{_percent(part)}<tspan class="faint" dx="8">{took}</tspan></text>'
        )
        if kind == "took" or at == 0:
            edge = across(left if kind == "took" else 1.0)
            parts.append(f'<line class="axis" x1="{edge:.1f}" x2="{edge:.1f}" y1="{y + _BAR}" y2="{y + _BAR + 8}"/>')
    return "".join([*parts, "</svg>"])


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %" if 0 < part < 0.1 or 0.99 < part < 1 else f"{100 * part:.1f} %"
