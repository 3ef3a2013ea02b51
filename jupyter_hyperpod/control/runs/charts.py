"""Draws curves as SVG: lines over steps, with a band where one place stands for several steps. Pure.

Colours are names of the page's own palette (`page.py`), so one picture fits light, dark and paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .markup import number, safe
from .series import CurvePlace, Series

COLOURS = 6
WIDE, HIGH = 880, 240
SMALL, LOW = 430, 168
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 34
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 3")
_LOGARITHMIC, _SMALL_LOGARITHMIC = 50.0, 1000.0  # times the lowest value
LARGEST = sys.float_info.max
_COLUMNS = 48  # places that say their values under the pointer
_GAP = 3.0  # times the usual time between two samples, as `src/dashboard/strokes.ts` has it

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """One curve, in the ``colour`` of the palette with this number."""

    name: str
    series: Series
    colour: int = 0


@dataclass(frozen=True)
class Mark:
    """A vertical line at a step, with what happened there. ``kind`` is a class of the page: bad or info."""

    step: float
    text: str
    kind: str = "bad"


@dataclass(frozen=True)
class Chart:
    """What is drawn in one picture. ``alt`` describes it for those who do not see it.

    ``sampled``: no line leads over a time without samples.
    """

    name: str
    lines: Sequence[Line]
    alt: str
    marks: Sequence[Mark] = ()
    small: bool = False
    axis: str = "step"
    sampled: bool = False

    def svg(self) -> str:
        """The picture; empty where no line has a value."""
        lines = [line for line in self.lines if line.series.places]
        return "".join(_Drawing(self, lines).parts()) if lines else ""


class _Drawing:
    def __init__(self, chart: Chart, lines: Sequence[Line]) -> None:
        self.chart, self.lines = chart, lines
        self.width, self.height = (SMALL, LOW) if chart.small else (WIDE, HIGH)
        low = min(line.series.lowest for line in lines)
        high = max(line.series.highest for line in lines)
        self.logarithmic = low > 0 and high / low > (_SMALL_LOGARITHMIC if chart.small else _LOGARITHMIC)
        if not self.logarithmic:
            pad = (high / 2 - low / 2) * 0.12 or abs(high) * 0.05 or 1.0
            low, high = max(0.0 if low >= 0 else -LARGEST, low - pad), min(LARGEST, high + pad)
        self.low, self.high = low, high
        first = min(line.series.places[0].step for line in lines)
        last = max(line.series.places[-1].step for line in lines)
        self.first, self.last = (first - 0.5, last + 0.5) if first == last else (float(first), float(last))
        self.across = scale(self.first, self.last, _LEFT, self.width - _RIGHT)
        self.up = scale(low, high, self.height - _BOTTOM, _TOP, self.logarithmic)

    def parts(self) -> Iterator[str]:
        left, right, bottom = _LEFT, self.width - _RIGHT, self.height - _BOTTOM
        yield f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{safe(self.chart.alt)}">'
        for value in ticks(self.low, self.high, 3 if self.chart.small else 4, self.logarithmic):
            y = self.up(value)
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{left - 7}" y="{y + 3.5:.1f}" text-anchor="end">{number(value)}</text>'
        for value in ticks(self.first, self.last, 4 if self.chart.small else 8):
            x = self.across(value)
            yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>'
        yield f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        yield f'<text class="faint" x="{right}" y="{bottom + 29}" text-anchor="end">{safe(self.chart.axis)}</text>'
        if self.logarithmic:
            yield f'<text class="faint" x="{left}" y="{bottom + 29}">logarithmic scale</text>'
        for line in self.lines:
            yield self._band(line)
        for at, line in enumerate(self.lines):
            yield self._line(line, DASHES[at % len(DASHES)], " wide" if at == 0 and len(self.lines) > 1 else "")
        yield from self._marks()
        yield from self._columns()
        yield "</svg>"

    def _band(self, line: Line) -> str:
        if line.series.stride == 1:
            return ""
        drawn = ""
        for places in self._strokes(line):
            if len(places) > 1:
                upper = [f"{self.across(p.step):.1f} {self.up(p.high):.1f}" for p in places]
                lower = [f"{self.across(p.step):.1f} {self.up(p.low):.1f}" for p in reversed(places)]
                drawn += f"M{'L'.join([*upper, *lower])}Z"
        return f'<path class="band fill{line.colour % COLOURS}" d="{drawn}"/>' if drawn else ""

    def _line(self, line: Line, dashes: str, more: str) -> str:
        """``more``: the first of several lines is wide, so that it is seen behind an equal one."""
        colour = line.colour % COLOURS
        points, path = "", ""
        for places in self._strokes(line):
            if len(places) == 1:
                x, y = self.across(places[0].step), self.up(places[0].last)
                points += f'<circle class="fill{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
            else:
                path += f"M{'L'.join(f'{self.across(p.step):.1f} {self.up(p.last):.1f}' for p in places)}"
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        return points + (f'<path class="line stroke{colour}{more}" d="{path}"{dashed}/>' if path else "")

    def _strokes(self, line: Line) -> list[Sequence[CurvePlace]]:
        places = line.series.places
        return strokes(places) if self.chart.sampled else [places]

    def _marks(self) -> Iterator[str]:
        for mark in self.chart.marks:
            if self.first <= mark.step <= self.last:
                x = self.across(mark.step)
                yield (
                    f'<g class="mark {mark.kind}"><line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" '
                    f'y2="{self.height - _BOTTOM}"/><path d="M{x - 4:.1f} {_TOP - 4}h8l-4 7z"/>'
                    f"<title>{safe(mark.text)}</title></g>"
                )

    def _columns(self) -> Iterator[str]:
        """Invisible columns whose tooltips say the values under the pointer, without a script."""
        longest = max(self.lines, key=lambda line: len(line.series.places)).series
        steps = [place.step for place in longest.rows(_COLUMNS)]
        edges = [self.across(step) for step in steps]
        for at, step in enumerate(steps):
            left = (edges[at - 1] + edges[at]) / 2 if at else _LEFT
            right = (edges[at] + edges[at + 1]) / 2 if at + 1 < len(edges) else self.width - _RIGHT
            said = [f"{self.chart.axis} {step:,}"]
            for line in self.lines:
                value = line.series.at(step)
                named = f"{line.name}: " if len(self.lines) > 1 else ""
                said.append(f"{named}{'-' if value is None else f'{value:.6g}'}")
            yield (
                f'<rect class="column" x="{left:.1f}" y="{_TOP}" width="{max(0.1, right - left):.1f}" '
                f'height="{self.height - _TOP - _BOTTOM}"><title>{safe(chr(10).join(said))}</title></rect>'
            )


def strokes(places: Sequence[CurvePlace]) -> list[Sequence[CurvePlace]]:
    """The places between which a line is drawn; a node that was away used nothing in that time."""
    between = [later.time_s - earlier.time_s for earlier, later in pairwise(places)]
    if not between:
        return [places]
    usual = sorted(between)[(len(between) - 1) // 2]
    begins = [0, *(at for at, time_s in enumerate(between, 1) if time_s > _GAP * usual), len(places)]
    return [places[begin:end] for begin, end in pairwise(begins)]


def legend_entry(at: int, name: str) -> str:
    """The name of the line with this number, beside a sample of it."""
    kind, dashes = f"line stroke{at % COLOURS}{' wide' * (at == 0)}", DASHES[at % COLOURS]
    drawn = f'<path class="{kind}" d="M0 5h22" stroke-dasharray="{dashes}"/>'
    return f'<span><svg viewBox="0 0 22 10" aria-hidden="true">{drawn}</svg>{safe(name)}</span>'


def scale(low: float, high: float, start: float, end: float, logarithmic: bool = False) -> Scale:
    """Where a value is between ``start`` and ``end``; beyond them, at the nearer of both."""
    if logarithmic:
        straight = scale(math.log(low), math.log(high), start, end)
        return lambda value: straight(math.log(max(value, low)))
    span = (high / 2 - low / 2) or 1.0  # halves, because the difference of the largest numbers is infinite
    return lambda value: start + min(1.0, max(0.0, (value / 2 - low / 2) / span)) * (end - start)


def ticks(low: float, high: float, most: int, logarithmic: bool = False) -> list[float]:
    """Round numbers from ``low`` to ``high``, about as many as ``most``."""
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            found = [f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power <= high]
            if len(found) <= most + 2:
                return found
        return found[:: -(-len(found) // (most + 1))]
    span = high - low
    if not (math.isfinite(span) and span > abs(high) * 1e-12 and span > 1e-300):
        return [low]
    step = 10.0 ** math.floor(math.log10(span))
    step *= next(
        factor for factor in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0) if span / (step * factor) <= most + 1
    )
    return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def table_rows(lines: Sequence[Line], most: int) -> Iterator[list[str]]:
    """The values behind a picture, by step, for those who read it as a table."""
    longest = max(lines, key=lambda line: len(line.series.places)).series
    for place in longest.rows(most):
        values = [place if line.series is longest else _near(line.series, place.step) for line in lines]
        yield [f"{place.step:,}", *("-" if value is None else f"{value.last:.6g}" for value in values)]


def _near(series: Series, step: int) -> CurvePlace | None:
    """The place of a series that covers a step; None where it has none."""
    return next((place for place in series.places if place.step // series.stride == step // series.stride), None)
