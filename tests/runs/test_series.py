"""Curves in bounded memory: nothing that was highest or lowest is lost; exact losses keep all 64 bits."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control.runs.charts import Chart, Line, scale, ticks
from jupyter_hyperpod.control.runs.losses import ExactLosses
from jupyter_hyperpod.control.runs.series import PLACES, Series

numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(numbers, max_size=60), st.integers(1, 400))
def test_a_curve_keeps_extremes_and_the_last_value(values: list[float], apart: int) -> None:
    series = Series()
    for at, value in enumerate(values):
        series.add(1 + at * apart, value)
    finite = [value for value in values if math.isfinite(value)]
    assert series.count == len(values) and series.not_finite == len(values) - len(finite)
    if finite:
        assert (series.lowest, series.highest, series.places[-1].last) == (min(finite), max(finite), finite[-1])


def test_a_long_curve_stays_small() -> None:
    series = Series()
    for step in range(1, 100_001):
        series.add(step, 1000.0 if step == 54_321 else math.sin(step / 5000))
    assert PLACES / 2 <= len(series.places) <= 2 * PLACES and series.highest == 1000.0
    assert [place.step for place in series.places] == sorted({place.step for place in series.places})
    assert series.places[-1].step == 100_000
    series.add(99_999, 5000.0)
    assert series.highest == 1000.0, "a step that comes again replaces nothing"


@given(st.lists(numbers, min_size=1, max_size=40), st.booleans())
def test_any_curve_can_be_drawn(values: list[float], small: bool) -> None:
    series = Series()
    for step, value in enumerate(values, 1):
        series.add(step, value)
    picture = Chart("x", [Line("x", series)], "alt", small=small).svg()
    assert bool(picture) == bool(series.places)
    drawn = re.sub(r"<title>.*?</title>|<text.*?</text>", "", picture, flags=re.DOTALL)
    assert "nan" not in drawn and "inf" not in drawn


@given(numbers.filter(math.isfinite), numbers.filter(math.isfinite), st.integers(1, 9))
def test_ticks_are_few_and_inside(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    found = ticks(low, high, most)
    assert len(found) <= most + 2
    place = scale(low, high, 0.0, 100.0)
    assert all(0.0 <= place(value) <= 100.0 for value in found)


def test_no_line_leads_over_a_time_without_samples() -> None:
    """The times and the rule are those of `src/dashboard/__tests__/resources.spec.tsx`."""
    series = Series()
    for time_s in (0, 10, 20, 80, 90, 200):
        series.add(time_s, 5.0, 1000.0 + time_s)
    lines = [Line("node-1", series)]
    picture = Chart("CPU", lines, "alt", sampled=True).svg()
    (path,) = re.findall(r'<path class="line stroke0" d="([^"]+)"', picture)
    assert [stroke.count("L") for stroke in path.split("M")[1:]] == [2, 1]
    assert picture.count("<circle") == 1, "a sample alone is a point"
    whole = Chart("loss", lines, "alt").svg()
    assert re.findall(r'<path class="line stroke0" d="([^"]+)"', whole)[0].count("L") == 5


def test_a_step_that_was_computed_again_with_another_loss_counts_as_it_was_last() -> None:
    losses = ExactLosses(1)
    for step, loss in ((1, 1.0), (2, 0.5), (3, 0.25), (2, 0.5), (2, 0.75), (3, 0.125)):
        losses.add(step, loss.hex())
    assert list(losses.steps) == [1, 2, 3]
    assert [losses.loss(place) for place in range(3)] == [1.0, 0.75, 0.125]
    assert losses.repeated == 1
    losses.add(4, "nan")
    losses.add(5, "no number")
    assert list(losses.steps) == [1, 2, 3, 4]
