"""Computes and draws training time, goodput and cost over the number of instances, for both regimes."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.elastic import MAX_NODES
from ..core.errors import Conflict, SpecError
from ..core.units import format_money, plural
from .goodput import CONVENTIONS, Regime
from .outcome import Outcome
from .quantities import DAY_S
from .regimes import IN_PLACE
from .request import AUTOMATIC, MANUAL, PlanRequest

POINTS = 49
REACH = 16  # the axis reaches from 1/REACH to REACH times the requested instances
WIDTH, HEIGHT, DOT = 960, 300, 4
_TOP, _BOTTOM, _LEFT, _GAP = 64, 46, 54, 66
REGIMES = (MANUAL, AUTOMATIC)
COLOURS = {MANUAL: "#d1603d", AUTOMATIC: "#1f9e89", IN_PLACE: "#5778c8"}
INK = "var(--jp-ui-font-color1, #767676)"
FAINT = "var(--jp-border-color1, #76767655)"
_LIGHT = "svg { background: #ffffff; --jp-ui-font-color1: #333333; --jp-border-color1: #dddddd }"
_DARK = "svg { background: #1e1e1e; --jp-ui-font-color1: #dddddd; --jp-border-color1: #444444 }"
STYLE = f"<style>{_LIGHT} @media (prefers-color-scheme: dark) {{ {_DARK} }}</style>"  # for a file of its own

Points = Mapping[int, Mapping[str, Regime | None]]  # instances -> name -> regime, None where its run never ends


def curve(request: PlanRequest) -> Points:
    """The closed form for numbers of instances around that of the request, evenly on a logarithmic axis."""
    middle = request.cluster.instances
    low, high = max(1, middle // REACH), min(MAX_NODES, middle * REACH)
    ratio = (high / low) ** (1 / (POINTS - 1))
    numbers = {round(low * ratio**number) for number in range(POINTS)} | {middle}
    return {instances: {name: _one(request, instances, name) for name in REGIMES} for instances in sorted(numbers)}


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


def picture(request: PlanRequest, outcomes: Mapping[str, Outcome]) -> str:
    """Draw all figures side by side as SVG, with `outcomes` of a simulation as dots."""
    points = curve(request)
    width = (WIDTH - _LEFT - (len(PANELS) - 1) * _GAP - 12) / len(PANELS)
    parts = [_legend(request, outcomes)]
    for number, panel in enumerate(PANELS):
        left = _LEFT + number * (width + _GAP)
        parts += _Drawing(panel, points, request.cluster.instances, left, left + width).parts(outcomes)
    alt = html.escape(f"Training time, goodput and cost over instances, {CONVENTIONS[request.convention]}")
    style = f"font: 11px var(--jp-ui-font-family, sans-serif); fill: {INK}; max-width: 100%"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{alt}" style="{style}">{"".join(parts)}</svg>'
    )


def _legend(request: PlanRequest, outcomes: Mapping[str, Outcome]) -> str:
    rate, convention = request.cluster.rate, request.convention
    where = f"{100 * rate:g} %/h an instance; {CONVENTIONS[convention]} ({convention})"
    text = [f'<text x="{_LEFT}" y="16" font-weight="600">{html.escape(where)}</text>']
    names = list(outcomes or REGIMES)
    for number, name in enumerate(names):
        x = _LEFT + 110 * number
        mark = f'<line x1="{x}" x2="{x + 18}" y1="30" y2="30" stroke="{COLOURS[name]}" stroke-width="2.5"/>'
        if name == IN_PLACE:
            mark = f'<circle cx="{x + 9}" cy="30" r="{DOT}" fill="{COLOURS[name]}"/>'
        text.append(f'{mark}<text x="{x + 24}" y="34">{name}</text>')
    if outcomes:
        x = _LEFT + 110 * len(names)
        text.append(f'<text x="{x}" y="34" opacity="0.8">dots: simulated, 95 % interval</text>')
    return "".join(text)


class _Drawing:
    """One panel at its place: its two scales, and the parts that are drawn with them."""

    def __init__(self, panel: _Panel, points: Points, middle: int, left: float, right: float) -> None:
        self.panel, self.points, self.middle = panel, points, middle
        self.left, self.right = left, right
        values = [panel.read(regime) for point in points.values() for regime in point.values() if regime]
        self.low = min(values) if panel.low is None else panel.low
        usual = points[middle][MANUAL]
        if panel.high is not None:
            self.high = panel.high
        elif panel.logarithmic or usual is None:
            self.high = max(values)
        else:  # unbounded growth is cut off, or it would flatten everything else
            self.high = min(max(values), 3 * panel.read(usual))
        self.across = _scale(min(points), max(points), left, right, True)
        self.up = _scale(self.low, self.high, HEIGHT - _BOTTOM, _TOP, panel.logarithmic)

    def parts(self, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
        """The panel's title, axes, lines and dots."""
        panel, left, right, bottom = self.panel, self.left, self.right, HEIGHT - _BOTTOM
        yield f'<text x="{left}" y="{_TOP - 8}" opacity="0.8">{panel.title}</text>'
        for value in _ticks(self.low, self.high, panel.logarithmic):
            y = self.up(value)
            yield f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
            yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{panel.label(value)}</text>'
        for value in _ticks(min(self.points), max(self.points), True):
            yield f'<text x="{self.across(value):.1f}" y="{bottom + 16}" text-anchor="middle">{value:,.0f}</text>'
        x = left + (right - left) / 2
        yield f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle" opacity="0.8">instances</text>'
        middle = self.across(self.middle)
        place = f'x1="{middle:.1f}" x2="{middle:.1f}" y1="{_TOP}" y2="{bottom}"'
        yield f'<line {place} stroke="{INK}" stroke-dasharray="2 3" opacity="0.6"/>'
        yield from map(self._line, REGIMES)
        for number, (name, outcome) in enumerate(outcomes.items()):  # side by side, because some are almost equal
            yield self._dot(outcome, name, middle + DOT * (2 * number - len(outcomes) + 1))
        yield from map(self._readout, self.points)

    def _line(self, name: str) -> str:
        path = ""
        for instances, point in self.points.items():
            regime = point[name]
            if regime is not None and (value := self.panel.read(regime)) <= self.high:
                path += f"{'L' if path else 'M'}{self.across(instances):.1f} {self.up(value):.1f}"
        return f'<path d="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'

    def _dot(self, outcome: Outcome, name: str, x: float) -> str:
        mean, margin = self.panel.simulated(outcome)
        y, top, bottom = (self.up(value) for value in (mean, mean + margin, max(mean - margin, 1e-9)))
        place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"'
        bar = f'<line {place} stroke="{COLOURS[name]}" stroke-width="2"/>'
        return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" fill="{COLOURS[name]}"/>'

    def _readout(self, instances: int) -> str:
        """An invisible column whose tooltip shows the figures under the pointer."""
        told = [plural(instances, "instance")]
        for name, regime in self.points[instances].items():
            told.append(f"{name}: {'never ends' if regime is None else self.panel.label(self.panel.read(regime))}")
        x, height = self.across(instances), HEIGHT - _BOTTOM - _TOP
        column = f'<rect x="{x - 3:.1f}" y="{_TOP}" width="6" height="{height}" fill="transparent">'
        return f"{column}<title>{html.escape(chr(10).join(told))}</title></rect>"


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


def write_picture(path: str, svg: str) -> None:
    """Write a new file. Raises SpecError for a name without .svg, Conflict where the file exists."""
    target = Path(path)
    if target.suffix != ".svg":
        raise SpecError(f"--plot {path}: pictures are drawn as SVG; expected a name that ends with .svg")
    head, rest = svg.split(">", 1)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(f"{head}>{STYLE}{rest}\n")
    except FileExistsError:
        raise Conflict(f"--plot {path}: the file exists and is kept; choose another name") from None
    except OSError as error:
        raise SpecError(f"--plot {path}: cannot be written: {error.strerror}") from None
