"""How many replicas, which one answers, who comes back when: what always holds, and the sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.serving import (
    RETRY_AFTER_LIMIT_S,
    UP_WINDOW_S,
    Limits,
    LoadReading,
    choose,
    decide,
    engine_patience_s,
    leave,
    patience_s,
    retire,
    retry_after_s,
)

LIMITS = Limits(minimum=1, maximum=4, outstanding=2.0, scale_down_delay_s=10.0)

limits = st.builds(
    lambda low, more, outstanding, delay: Limits(low, low + more, outstanding, delay),
    st.integers(0, 5),
    st.integers(1, 10),
    st.floats(0.1, 16),
    st.floats(1, 60),
)
loads = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 9), max_size=6)


def steady(load: int, until_s: float, since_s: float = 0.0) -> list[LoadReading]:
    return [LoadReading(since_s + at / 4, load) for at in range(int((until_s - since_s) * 4) + 1)]


def test_more_load_than_the_replicas_should_have_brings_more_at_once() -> None:
    found = decide([*steady(0, 20), *steady(6, 21.25, 20.25)], 1, LIMITS, 21.25)
    assert found.value == 3
    assert found.reason == "6 requests are outstanding, 2 a replica are wanted: 3 replicas"


def test_the_maximum_is_said() -> None:
    found = decide(steady(100, 5), 2, LIMITS, 5.0)
    assert (found.value, found.reason) == (
        4,
        "100 requests are outstanding, 2 a replica are wanted: 4 replicas, the most there may be",
    )


def test_less_load_takes_replicas_away_only_after_the_delay() -> None:
    busy = steady(7, 10)
    assert decide([*busy, *steady(1, 19, 10.25)], 4, LIMITS, 19.0).value == 4
    found = decide([*busy, *steady(1, 20.5, 10.25)], 4, LIMITS, 20.5)
    assert (found.value, found.reason) == (1, "no more than 1 requests were outstanding for 10 s: 1 replica suffices")


def test_a_wave_within_the_delay_keeps_what_it_needed() -> None:
    wave = [*steady(0, 30), *steady(6, 31, 30.25), *steady(0, 39, 31.25)]
    assert decide(wave, 4, LIMITS, 39.0).value == 3


def test_none_is_left_where_none_may_be_and_one_request_brings_one() -> None:
    to_zero = Limits(0, 2, 2.0, 5.0)
    assert decide(steady(0, 6), 1, to_zero, 6.0).value == 0
    assert decide([LoadReading(0.0, 1)], 0, to_zero, 0.0).value == 1


def test_a_range_that_was_left_is_entered_again() -> None:
    assert decide([], 9, LIMITS, 0.0).value == 4
    assert "outside the range 1:4" in decide([], 0, LIMITS, 0.0).reason


@given(limits, st.lists(st.integers(0, 60), max_size=40), st.integers(0, 20))
def test_the_range_is_never_left_and_a_decision_stands(bounds: Limits, counts: list[int], replicas: int) -> None:
    readings = [LoadReading(at / 4, count) for at, count in enumerate(counts)]
    now_s = len(counts) / 4
    found = decide(readings, replicas, bounds, now_s)
    assert bounds.minimum <= found.value <= bounds.maximum
    assert found.reason
    if bounds.minimum <= replicas <= bounds.maximum:
        again = decide(readings, found.value, bounds, now_s)
        assert again.value == found.value, "asked again with the same readings, it changes its mind"


@given(limits, st.integers(0, 60), st.integers(0, 60), st.integers(0, 15))
def test_more_load_never_means_fewer_replicas(bounds: Limits, load: int, more: int, replicas: int) -> None:
    span_s = bounds.scale_down_delay_s + 2 * UP_WINDOW_S
    few, many = (decide(steady(count, span_s), replicas, bounds, span_s).value for count in (load, load + more))
    assert few <= many


@given(loads, st.integers(1, 9), st.sets(st.text("abc", min_size=1, max_size=3)))
def test_the_least_busy_with_a_free_slot_answers(outstanding: dict[str, int], slots: int, avoid: set[str]) -> None:
    found = choose(outstanding, slots, avoid)
    free = {name for name, count in outstanding.items() if count < slots}
    assert (found is None) == (not free)
    if found is not None:
        assert found in free
        better = free - avoid or free
        assert found in better
        assert outstanding[found] == min(outstanding[name] for name in better)


@given(loads, st.integers(-2, 9))
def test_who_has_least_to_finish_goes(outstanding: dict[str, int], count: int) -> None:
    gone = retire(outstanding, count)
    assert len(gone) == len(set(gone)) == max(0, min(count, len(outstanding)))
    staying = outstanding.keys() - set(gone)
    assert all(outstanding[name] <= outstanding[stays] for name in gone for stays in staying)


@given(loads, st.sets(st.text("abc", min_size=1, max_size=3)), st.integers(0, 5), st.integers(0, 5))
def test_who_has_to_leave_stays_as_long_as_others_are_missing(
    outstanding: dict[str, int], ready: set[str], others: int, target: int
) -> None:
    gone = leave(outstanding, ready, others, target)
    staying = outstanding.keys() - set(gone)
    assert len(staying) == min(len(outstanding), max(0, target - others))
    assert not (staying - ready and ready & set(gone)), "who does not answer goes first"
    alike = [name for name in gone if name in ready or not staying & ready]
    assert all(outstanding[name] <= outstanding[stays] for name in alike for stays in staying)


def test_among_equals_the_newest_goes() -> None:
    assert retire({"old": 1, "new": 1, "busy": 3}, 1) == ("new",)


@pytest.mark.parametrize(("waiting", "rate", "seconds"), [(10, 5.0, 2), (1, 100.0, 1), (10_000, 1.0, 60), (5, 0.0, 60)])
def test_when_to_come_back(waiting: int, rate: float, seconds: int) -> None:
    assert retry_after_s(waiting, rate) == seconds <= RETRY_AFTER_LIMIT_S


@pytest.mark.parametrize(
    ("first_s", "replicas", "wanted"),
    [(10.0, 2, 1), (10.25, 2, 2), (10.0, 1, 1)],
    ids=["the whole delay", "a little less", "no fewer than there may be"],
)
def test_the_delay_is_over_when_it_has_been_seen_whole(first_s: float, replicas: int, wanted: int) -> None:
    assert decide(steady(0, 20.0, first_s), replicas, LIMITS, 20.0).value == wanted


def test_what_is_a_second_old_counts_for_going_up() -> None:
    assert decide([LoadReading(20.0 - UP_WINDOW_S, 8)], 1, LIMITS, 20.0).value == 4
    assert decide([LoadReading(19.9 - UP_WINDOW_S, 8)], 1, LIMITS, 20.0).value == 1


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("loading", [False, True])
@pytest.mark.parametrize("computes", [False, True])
def test_who_loads_or_computes_may_be_silent_for_longer(stopped: bool, loading: bool, computes: bool) -> None:
    busy = (loading or computes) and not stopped
    assert patience_s(stopped=stopped, loading=loading, computes=computes) == (60.0 if busy else 3.0)


def test_an_engine_that_waits_for_a_device_has_longer_than_one_that_is_stopped() -> None:
    assert engine_patience_s(stopped=True, computes=True) == 3.0
    assert engine_patience_s(stopped=False, computes=False) == 30.0
    assert engine_patience_s(stopped=False, computes=True) == 60.0
