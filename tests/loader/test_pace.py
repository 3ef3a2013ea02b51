"""How many connections: tried upwards, halved where a server asks for less, and back again when it does not."""

from __future__ import annotations

from dataclasses import replace
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.loader.read.pace import CALM, LONGEST_WAIT_S, Pace, adjust, asked_delay_s, delay_s, widen

MB = 1e6
NOW_S = 1_700_000_000.0
limits = st.integers(1, 64)


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    """A load that begins."""
    limit = draw(limits)
    return Pace(draw(st.integers(1, limit)), limit)


windows = st.lists(st.tuples(st.floats(0, 1e10), st.sampled_from([0, 0, 0, 1, 7])), max_size=60)


def run(pace: Pace, rates: list[float], throttled: int = 0) -> list[int]:
    """The connections after each of some windows."""
    found = []
    for rate in rates:
        pace = adjust(pace, rate, throttled)
        found.append(pace.connections)
    return found


def test_more_are_tried_while_they_bring_more() -> None:
    assert run(Pace(4, 64), [10 * MB, 20 * MB, 30 * MB, 31 * MB, 90 * MB]) == [6, 9, 13, 13, 13]
    assert run(Pace(3, 4), [10 * MB, 20 * MB, 90 * MB]) == [4, 4, 4]
    assert widen(Pace(3, 64)).connections == 9 and widen(Pace(12, 64)).connections == 16
    assert widen(Pace(3, 64, settled=True)).connections == 3


@pytest.mark.parametrize("settled", [True, False])
def test_a_refusal_halves_and_calm_brings_one_after_the_other_back(settled: bool) -> None:
    pace = adjust(Pace(16, 16, 50 * MB, settled), 50 * MB, 2)
    assert pace.connections == 8
    assert run(pace, [50 * MB] * (CALM + 9)) == [8] * (CALM - 1) + [*range(9, 17)] + [16] * 2


def test_a_storm_leaves_one_connection_and_not_for_good() -> None:
    pace = Pace(16, 16, 50 * MB, settled=True)
    for _ in range(5):
        pace = adjust(pace, 50 * MB, 1)
    assert pace.connections == 1
    assert run(pace, [5 * MB] * 50)[-1] == 16


def test_what_was_being_tried_is_tried_again() -> None:
    """A refusal in the first second is no reason to stay with three connections."""
    pace = adjust(Pace(3, 64), 10 * MB, 1)
    assert run(pace, [MB * 2**n for n in range(20)])[-1] == 64
    wide = widen(pace)
    assert wide.connections == 1
    assert max(run(replace(wide, settled=True), [10 * MB] * 20)) == 9


def test_windows_in_which_nothing_came_are_not_calm() -> None:
    """All connections may be waiting as long as the server has asked them to."""
    pace = adjust(Pace(16, 16), 50 * MB, 1)
    assert run(pace, [0.0] * 50) == [8] * 50
    assert run(pace, [0.0] * 50 + [MB] * CALM)[-2:] == [8, 9]
    assert run(pace, [MB] * CALM + [0.0] * 50 + [MB])[-2:] == [9, 10]


def test_one_connection_that_is_refused_waits_too() -> None:
    pace = adjust(Pace(1, 64), MB, 1)
    assert run(pace, [MB] * (CALM + 1)) == [1] * CALM + [2]


@given(paces(), windows, st.integers(0, 60))
def test_never_more_than_the_most_and_never_none(pace: Pace, seen: list[tuple[float, int]], wide: int) -> None:
    for number, (rate, throttled) in enumerate(seen):
        before = pace.connections
        pace = adjust(pace, rate, throttled)
        assert 1 <= pace.connections <= pace.limit
        assert pace.connections <= before if throttled else pace.connections >= before
        if number == wide:
            pace = widen(pace)
            assert 1 <= pace.connections <= pace.limit


@given(paces(), windows, st.booleans())
def test_calm_always_brings_back_what_there_was(pace: Pace, seen: list[tuple[float, int]], settled: bool) -> None:
    pace = replace(pace, settled=settled)
    refused_at = 0
    for rate, throttled in seen:
        if throttled:
            refused_at = max(refused_at, pace.connections)
        pace = adjust(pace, rate, throttled)
    assert run(pace, [1.0] * (CALM + pace.limit))[-1] >= refused_at


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0"}, 0),
        ({"retry-after": formatdate(NOW_S + 7, usegmt=True)}, 7),
        ({"retry-after": formatdate(NOW_S + 7, usegmt=True), "date": formatdate(NOW_S + 3, usegmt=True)}, 4),
        ({"retry-after": formatdate(NOW_S + 7, usegmt=True), "date": "now"}, 7),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:27 -0000"}, 7),
        ({"retry-after": "Tue Nov 14 22:13:27 2023"}, 7),
        ({"retry-after": "Tuesday, 14-Nov-23 22:13:27 GMT"}, 7),
        ({"retry-after": formatdate(NOW_S - 7, usegmt=True)}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after": "Tue, 14 Nov 99999999999 22:13:27 GMT"}, None),
    ],
)
def test_a_time_that_a_server_names(fields: dict[str, str], expected: float | None) -> None:
    assert asked_delay_s(fields, NOW_S) == expected


@given(st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text()), st.floats(0, 1, exclude_max=True))
def test_no_server_makes_anybody_wait_for_longer(fields: dict[str, str], random: float) -> None:
    assert 0 <= delay_s(1, asked_delay_s(fields, NOW_S), random) <= LONGEST_WAIT_S * 1.25
    year = {"retry-after": formatdate(NOW_S + 3e7, usegmt=True)}
    assert LONGEST_WAIT_S <= delay_s(1, asked_delay_s(year, NOW_S), random) <= LONGEST_WAIT_S * 1.25
