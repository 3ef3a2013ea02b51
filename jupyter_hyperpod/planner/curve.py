"""Computes and draws training time, goodput and cost over the number of instances, for both regimes."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.elastic import MAX_NODES
from ..core.errors import SpecError
from ..core.units import format_money, plural
from .goodput import CONVENTIONS, Regime, RegimeComparison
from .outcome import Outcome
from .quantities import DAY_S
from .request import PlanRequest

POINTS = 49
REACH = 16  # the axis reaches from 1/REACH to REACH times the requested instances
WIDTH, HEIGHT, DOT = 960, 300, 4
_TOP, _BOTTOM, _LEFT, _GAP = 64, 46, 54, 66
REGIMES = ("manual", "automatic")
COLOURS = {"manual": "#d1603d", "automatic": "#1f9e89", "in place": "#5778c8"}
NAMES = {"manual": "by hand", "automatic": "automatic", "in place": "in place"}
INK = "var(--jp-ui-font-color1, #767676)"
FAINT = "var(--jp-border-color1, #76767655)"


@dataclass(frozen=True, slots=True)
class Point:
    """Both regimes at one number of instances; a regime is None where its run never ends."""

    instances: int
    manual: Regime | None
    automatic: Regime | None


def curve(request: PlanRequest, points: int = POINTS) -> list[Point]:
    """The closed form for numbers of instances around that of the request, evenly on a logarithmic axis."""
    middle = request.cluster.instances
    low, high = max(1, middle // REACH), min(MAX_NODES, middle * REACH)
    ratio = (high / low) ** (1 / max(1, points - 1))
    numbers = {round(low * ratio**number) for number in range(points)} | {middle}
    found = []
    for instances in sorted(numbers):
        pairs = {name: _one(request, instances, name) for name in REGIMES}
        found.append(Point(instances, pairs["manual"], pairs["automatic"]))
    return found


def _one(request: PlanRequest, instances: int, name: str) -> Regime | None:
    try:
        return request.regime(instances, name)
    except SpecError:
        return None


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    read: Callable[[Regime], float]
    simulated: Callable[[Outcome], tuple[float, float]]
    label: Callable[[float], str]
    logarithmic: bool
    low: float | None = None
    high: float | None = None


PANELS = (
    _Panel(
        "training time, days",
        lambda regime: regime.days,
        lambda outcome: (outcome.wall_s.mean / DAY_S, outcome.wall_s.margin / DAY_S),
        lambda value: f"{value:,.0f}" if value >= 1 else f"{value:g}",
        logarithmic=True,
    ),
    _Panel(
        "goodput",
        lambda regime: 100 * regime.goodput,
        lambda outcome: (100 * outcome.goodput.mean, 100 * outcome.goodput.margin),
        lambda value: f"{value:.0f} %",
        logarithmic=False,
        low=0.0,
        high=100.0,
    ),
    _Panel(
        "cost",
        lambda regime: regime.cost,
        lambda outcome: (outcome.cost.mean, outcome.cost.margin),
        lambda value: f"${value / 1e6:,.4g} M" if value >= 1e6 else format_money(value),
        logarithmic=False,
        low=0.0,
    ),
)


def picture(request: PlanRequest, found: RegimeComparison, outcomes: Mapping[str, Outcome] | None = None) -> str:
    """An SVG that takes the colours of the page, one panel a figure; simulated regimes are dots with their interval."""
    points = curve(request)
    outcomes = outcomes or {}
    width = (WIDTH - _LEFT - (len(PANELS) - 1) * _GAP - 12) / len(PANELS)
    parts = [_legend(found, outcomes)]
    for number, panel in enumerate(PANELS):
        parts.append(_draw(panel, points, found, outcomes, _LEFT + number * (width + _GAP), width))
    alt = html.escape(f"Training time, goodput and cost over instances, {CONVENTIONS[found.convention]}")
    style = f"font: 11px var(--jp-ui-font-family, sans-serif); fill: {INK}; max-width: 100%"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{alt}" style="{style}">{"".join(parts)}</svg>'
    )


def _legend(found: RegimeComparison, outcomes: Mapping[str, Outcome]) -> str:
    cluster = found.cluster
    where = f"{100 * cluster.rate:g} %/h an instance; {CONVENTIONS[found.convention]} ({found.convention})"
    text = [f'<text x="{_LEFT}" y="16" font-weight="600">{html.escape(where)}</text>']
    names = [*REGIMES, *(["in place"] if "in place" in outcomes else [])]
    for number, name in enumerate(names):
        x = _LEFT + 110 * number
        mark = f'<line x1="{x}" x2="{x + 18}" y1="30" y2="30" stroke="{COLOURS[name]}" stroke-width="2.5"/>'
        if name == "in place":
            mark = f'<circle cx="{x + 9}" cy="30" r="{DOT}" fill="{COLOURS[name]}"/>'
        text.append(f'{mark}<text x="{x + 24}" y="34">{NAMES[name]}</text>')
    if outcomes:
        x = _LEFT + 110 * len(names)
        text.append(f'<text x="{x}" y="34" opacity="0.8">dots: simulated, 95 % interval</text>')
    return "".join(text)


def _draw(
    panel: _Panel,
    points: Sequence[Point],
    found: RegimeComparison,
    outcomes: Mapping[str, Outcome],
    left: float,
    width: float,
) -> str:
    values = [panel.read(regime) for point in points for regime in (point.manual, point.automatic) if regime]
    across = _scale(points[0].instances, points[-1].instances, left, left + width, True)
    low = min(values) if panel.low is None else panel.low
    high = panel.high
    if high is None:  # unbounded growth is cut off, or it would flatten everything else
        high = max(values) if panel.logarithmic else min(max(values), 3 * panel.read(found.manual))
    up = _scale(low, high, HEIGHT - _BOTTOM, _TOP, panel.logarithmic)
    parts = [f'<text x="{left}" y="{_TOP - 8}" opacity="0.8">{panel.title}</text>']
    for value in _ticks(low, high, panel.logarithmic):
        y = up(value)
        parts.append(f'<line x1="{left:.1f}" x2="{left + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{panel.label(value)}</text>')
    for value in _ticks(points[0].instances, points[-1].instances, True):
        x, y = across(value), HEIGHT - _BOTTOM
        parts.append(f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle">{value:,.0f}</text>')
    middle = across(found.cluster.instances)
    parts.append(
        f'<text x="{left + width / 2:.1f}" y="{HEIGHT - 12}" text-anchor="middle" opacity="0.8">instances</text>'
    )
    parts.append(
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" stroke="{INK}" '
        'stroke-dasharray="2 3" opacity="0.6"/>'
    )
    for name in REGIMES:
        parts.append(_line(panel, points, name, across, up, high))
    for number, (name, outcome) in enumerate(outcomes.items()):  # side by side, because some are almost equal
        parts.append(_dot(panel, outcome, name, middle + DOT * (2 * number - len(outcomes) + 1), up))
    parts += _readouts(panel, points, across)
    return "".join(parts)


def _readouts(panel: _Panel, points: Sequence[Point], across: Callable[[float], float]) -> list[str]:
    """Invisible columns whose tooltips show the figures under the pointer."""
    parts = []
    for point in points:
        told = [f"{plural(point.instances, 'instance')}"]
        for name, regime in (("manual", point.manual), ("automatic", point.automatic)):
            value = "never ends" if regime is None else panel.label(panel.read(regime))
            told.append(f"{NAMES[name]}: {value}")
        x = across(point.instances)
        column = f'<rect x="{x - 3:.1f}" y="{_TOP}" width="6" height="{HEIGHT - _BOTTOM - _TOP}" fill="transparent">'
        parts.append(f"{column}<title>{html.escape(chr(10).join(told))}</title></rect>")
    return parts


def _line(
    panel: _Panel,
    points: Sequence[Point],
    name: str,
    across: Callable[[float], float],
    up: Callable[[float], float],
    high: float,
) -> str:
    path: list[str] = []
    for point in points:
        regime: Regime | None = getattr(point, name)
        if regime is None or panel.read(regime) > high:
            continue
        path.append(f"{'L' if path else 'M'}{across(point.instances):.1f} {up(panel.read(regime)):.1f}")
    return f'<path d="{"".join(path)}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'


def _dot(panel: _Panel, outcome: Outcome, name: str, x: float, up: Callable[[float], float]) -> str:
    mean, margin = panel.simulated(outcome)
    colour = COLOURS["manual" if name == NAMES["manual"] else name]
    y, top, bottom = up(mean), up(mean + margin), up(max(mean - margin, 1e-9))
    bar = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}" stroke-width="2"/>'
    return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill="{colour}"/>'


def _scale(low: float, high: float, start: float, end: float, logarithmic: bool) -> Callable[[float], float]:
    measure: Callable[[float], float] = math.log if logarithmic else float
    first, span = measure(low), (measure(high) - measure(low)) or 1.0
    return lambda value: start + (measure(value) - first) / span * (end - start)


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if not logarithmic:
        step = 10.0 ** math.floor(math.log10((high - low) or 1.0))
        step *= next(factor for factor in (0.25, 0.5, 1.0, 2.5) if (high - low) / (step * factor) <= 5)
        return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power <= high]
        if len(found) <= 6:
            return found
    return found[:: -(-len(found) // 5)]
