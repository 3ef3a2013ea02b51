"""Draws a sweep in parallel coordinates as SVG: an axis for each name and the metric, a line for each trial. Pure.

Colours are names of the page's own palette (`runs/page.py`), so one picture fits light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.units import cut
from ...policy.sweeps.space import Axis
from ..runs.charts import scale, ticks
from ..runs.markup import number, safe
from .axes import NumberAxis, WordAxis, axis_of, metric_axis

WIDE, HIGH = 880, 340
TOP, BOTTOM, SIDE = 42, 26, 62
LABEL = 16


@dataclass(frozen=True)
class DrawnTrial:
    """A trial: its values, its metric where it counts, what is said under the pointer, and whether it is the best."""

    number: int
    values: Mapping[str, Any]
    metric: float | None
    said: str
    best: bool = False


@dataclass(frozen=True)
class UprightAxis:
    """One axis: its name, a note below it, the height of a value, and ticks with their labels."""

    name: str
    height: Callable[[Any], float | None]
    ticks: Sequence[tuple[float, str]]
    note: str = ""


def parallel_coordinates(
    space: Mapping[str, Axis], metric: str, maximize: bool, trials: Sequence[DrawnTrial], alt: str
) -> str:
    """The picture; empty without trials."""
    if not trials:
        return ""
    axes = [_axis(name, axis) for name, axis in space.items()]
    axes.append(_metric_axis(metric, maximize, [trial.metric for trial in trials if trial.metric is not None]))
    step = (WIDE - 2 * SIDE) / (len(axes) - 1)
    places = [SIDE + step * at for at in range(len(axes))]
    parts = [f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{safe(alt)}">']
    ranked = _ranks(trials, maximize)
    for trial in sorted(trials, key=lambda one: (one.best, one.metric is not None, -ranked.get(one.number, 0))):
        parts.append(_line(trial, axes, places, ranked))
    for axis, x in zip(axes, places, strict=True):
        parts += _drawn_axis(axis, x, last=axis is axes[-1])
    return "".join([*parts, "</svg>"])


def _ranks(trials: Sequence[DrawnTrial], maximize: bool) -> dict[int, int]:
    """Number -> place among the trials that have a value, 0 for the best."""
    known = [trial for trial in trials if trial.metric is not None]
    known.sort(key=lambda trial: trial.metric or 0.0, reverse=maximize)
    return {trial.number: place for place, trial in enumerate(known)}


def _line(trial: DrawnTrial, axes: Sequence[UprightAxis], places: Sequence[float], ranked: Mapping[int, int]) -> str:
    """A smooth line through the axes; without a metric it ends at the last name."""
    heights = [axis.height(trial.values.get(axis.name)) for axis in axes[:-1]] + [axes[-1].height(trial.metric)]
    points = [(x, y) for x, y in zip(places, heights, strict=True) if y is not None]
    if len(points) < 2:
        points = [*points, *((x + 18, y) for x, y in points)]
    drawn = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        middle = (x0 + x1) / 2
        drawn += f"C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    kind, more = "trial", ""
    if trial.best:
        kind = "trial best"
    elif trial.metric is None:
        kind = "trial open"
    else:
        share = ranked[trial.number] / max(1, len(ranked) - 1)
        more = f' stroke-opacity="{0.75 - 0.5 * share:.2f}"'
    path = f'<path class="{kind}" d="{drawn}"{more}><title>{safe(trial.said)}</title></path>'
    target = "best" if trial.best else f"trial-{trial.number}"
    return f'<a href="#{target}">{path}</a>'


def _drawn_axis(axis: UprightAxis, x: float, last: bool) -> Iterator[str]:
    yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HIGH - BOTTOM}"/>'
    yield f'<text class="name" x="{x:.1f}" y="{TOP - 22}" text-anchor="middle">{safe(axis.name, 40)}</text>'
    if axis.note:
        yield f'<text class="faint" x="{x:.1f}" y="{HIGH - 4}" text-anchor="middle">{safe(axis.note)}</text>'
    side, anchor = (x + 8, "start") if last else (x - 8, "end")
    for y, label in axis.ticks:
        yield f'<line class="axis" x1="{x - 3:.1f}" x2="{x + 3:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{side:.1f}" y="{y + 3.5:.1f}" text-anchor="{anchor}">{safe(label)}</text>'


def _axis(name: str, axis: Axis) -> UprightAxis:
    drawn = axis_of(name, axis)
    return _numbers(drawn) if isinstance(drawn, NumberAxis) else _words(drawn)


def _numbers(axis: NumberAxis, note: str = "") -> UprightAxis:
    up = scale(axis.low, axis.high, HIGH - BOTTOM, TOP, axis.logarithmic)
    shown = axis.at if axis.at is not None else ticks(axis.low, axis.high, 5, axis.logarithmic)
    shown = [value for value in shown if not axis.whole or value == round(value)]
    told = [*([note] if note else []), *(["logarithmic"] if axis.logarithmic else [])]
    labels = _apart([(up(value), number(value)) for value in shown])
    return UprightAxis(axis.name, lambda value: None if _word(value) else up(float(value)), labels, ", ".join(told))


def _apart(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The labels that do not cover each other."""
    kept: list[tuple[float, str]] = []
    for y, label in sorted(labels):
        if not kept or y - kept[-1][0] >= 12:
            kept.append((y, label))
    return kept


def _word(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _words(axis: WordAxis) -> UprightAxis:
    """A list of words: one place each, the first at the top."""
    count = len(axis.values)
    room = HIGH - BOTTOM - TOP
    heights = {
        (type(value).__name__, value): TOP + room * ((at + 0.5) / count if count < 3 else at / (count - 1))
        for at, value in enumerate(axis.values)
    }
    labels = [(y, cut(str(value), LABEL)) for (_, value), y in heights.items()]
    return UprightAxis(axis.name, lambda value: heights.get((type(value).__name__, value)), _apart(labels))


def _metric_axis(name: str, maximize: bool, values: Sequence[float]) -> UprightAxis:
    note = "large is good" if maximize else "small is good"
    axis = metric_axis(name, values)
    return _numbers(axis, note) if axis else UprightAxis(name, lambda value: None, (), note)
