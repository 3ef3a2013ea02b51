"""The axes of parallel coordinates: what a name of a sweep, or its metric, has from one end to the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...policy.sweeps.space import Axis, NumberRange, Value

MOST_TICKS = 8
_DECADES = 20.0  # from so many times its lowest value on, a list of numbers is drawn on a logarithmic axis
_METRIC_DECADES = 50.0


@dataclass(frozen=True)
class NumberAxis:
    """Numbers from ``low`` to ``high``. ``at``: the only ones that there are, where they are few."""

    name: str
    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False
    at: tuple[float, ...] | None = None


@dataclass(frozen=True)
class WordAxis:
    """Values that are no numbers, each at a place of its own."""

    name: str
    values: tuple[Value, ...]


DrawnAxis = NumberAxis | WordAxis


def axis_of(name: str, axis: Axis) -> DrawnAxis:
    """The axis of a name of a sweep: logarithmic where it was written so, or where a list has decades."""
    if isinstance(axis, NumberRange):
        return NumberAxis(name, axis.low, axis.high, axis.logarithmic, axis.whole)
    numbers = tuple(float(v) for v in axis.values if isinstance(v, int | float) and not isinstance(v, bool))
    if len(numbers) == len(axis.values) > 1:
        low, high = min(numbers), max(numbers)
        logarithmic = low > 0 and high / low >= _DECADES
        return NumberAxis(name, low, high, logarithmic, at=numbers if len(numbers) <= MOST_TICKS else None)
    return WordAxis(name, axis.values)


def metric_axis(name: str, values: Sequence[float]) -> NumberAxis | None:
    """The axis of the metric, which has room around a single value; None without values."""
    if not values:
        return None
    low, high = min(values), max(values)
    if low == high:
        pad = abs(low) * 0.05 or 1.0
        return NumberAxis(name, low - pad, high + pad)
    return NumberAxis(name, low, high, low > 0 and high / low > _METRIC_DECADES)


def to_json(axis: DrawnAxis) -> dict[str, Any]:
    """An axis for a browser."""
    return {"kind": "numbers" if isinstance(axis, NumberAxis) else "words"} | asdict(axis)
