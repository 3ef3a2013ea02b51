"""A global batch that follows the members: schedules, factors and decisions, for all histories."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.policy import growth
from jupyter_hyperpod.policy.growth import BatchTerms, GrowBatch, Schedule, count_at, joined, taken_before, until

schedules = st.dictionaries(st.integers(1, 40), st.integers(1, 8), max_size=6).map(
    lambda later: joined((), 0, tuple(sorted(({0: 3} | later).items())))
)


def terms(rule: str = "linear", warmup_steps: int = 0, members: int = 2, most: int = 128) -> BatchTerms:
    found = growth.terms_of(GrowBatch(rule, members, most, warmup_steps), 32, 4)
    assert found is not None
    return found


@given(schedules, schedules, st.integers(0, 50), st.integers(0, 60))
def test_two_schedules_that_are_joined_say_what_each_said(one: Schedule, other: Schedule, step: int, at: int) -> None:
    found = joined(one, step, other)
    assert count_at(found, at) == count_at(one if at < step else other, at)
    assert [first for first, _ in found] == sorted({first for first, _ in found})
    assert all(before[1] != after[1] for before, after in zip(found, found[1:], strict=False)), "only real changes"
    assert until(found, step) == until(one, step)


@given(schedules, st.integers(0, 60))
def test_no_sample_is_left_out_and_none_is_taken_twice(schedule: Schedule, step: int) -> None:
    assert taken_before(schedule, step) == sum(count_at(schedule, earlier) for earlier in range(step))


@given(schedules, st.sampled_from(["linear", "sqrt"]), st.integers(0, 12))
def test_a_factor_rises_evenly_falls_at_once_and_reaches_its_rule(schedule: Schedule, rule: str, warm: int) -> None:
    found, steps = terms(rule, warm), range(80)
    factors = [growth.factor(found, schedule, step) for step in steps]
    before = 1.0
    for step, factor in zip(steps, factors, strict=True):
        ratio = count_at(schedule, step) / found.base
        target = ratio if rule == "linear" else math.sqrt(ratio)
        begin = max(first for first, _ in schedule if first <= step)
        start = factors[begin - 1] if begin else 1.0
        assert min(before, target) <= factor <= max(before, target)
        assert factor == target if step + 1 - begin >= warm or target <= start else factor > before
        before = factor
    assert growth.factor(terms("constant", warm), schedule, 79) == 1.0


def test_a_factor_in_words_and_numbers() -> None:
    found = terms("linear", warmup_steps=4)
    factors = [growth.factor(found, ((0, 8), (2, 16), (7, 8)), step) for step in range(9)]
    assert factors == [1.0, 1.0, 1.25, 1.5, 1.75, 2.0, 2.0, 1.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), min_size=1, max_size=12))
def test_a_step_is_finished_with_the_batch_with_which_it_began(history: list[tuple[int, int, bool]]) -> None:
    """Members train some steps, perhaps begin one more, and then the members change."""
    found, known, step, begun = terms(), (), 0, 0
    record: dict[int, int] = {}
    for steps, members, begins in history:
        known = growth.next_schedule(found, known, step, begun, step, members).value
        assert until(known, step) == until(known, max(record, default=-1) + 1)
        for at in range(step, step + steps):
            record[at] = count_at(known, at)
        if begun and steps:
            assert record[step] == begun
        step += steps
        begun = count_at(known, step) if begins or (begun and not steps) else 0
        assert count_at(known, step + 1) == growth.for_members(found, members)
    assert all(count_at(known, at) == count for at, count in record.items())


def test_steps_that_are_applied_again_have_the_batch_that_they_had() -> None:
    """All members were lost: from the checkpoint of step 3 on, steps that were committed are repeated exactly."""
    found = growth.next_schedule(terms(), ((0, 8), (5, 16)), 3, 0, committed=9, members=6).value
    assert found == ((0, 8), (5, 16), (9, 24))
    assert growth.next_schedule(terms(), (), 3, 0, committed=9, members=2).value == ((3, 8),)


@given(schedules, st.integers(0, 50), st.integers(0, 50), st.booleans(), st.integers(1, 12))
def test_a_member_that_has_begun_a_repeated_step_changes_none_after_it(
    known: Schedule, step: int, more: int, begins: bool, members: int
) -> None:
    committed, begun = step + more, count_at(known, step) if begins else 0
    found = growth.next_schedule(terms(), known, step, begun, committed, members).value
    assert until(found, committed) == until(known, committed)
    assert count_at(found, max(committed, step + begins)) == growth.for_members(terms(), members)


@pytest.mark.parametrize(("members", "batch"), [(1, 32), (2, 32), (3, 32), (4, 64), (7, 96), (8, 128), (20, 128)])
def test_whole_multiples_up_to_the_most(members: int, batch: int) -> None:
    assert growth.for_members(terms(), members) * 4 == batch


def test_the_sentences() -> None:
    grown = growth.next_schedule(terms("sqrt", 20), ((0, 8),), 57, 0, 57, 4)
    assert grown.reason == (
        "4 members begin step 58: its global batch is 64, 2 times the 32 of 2 members; learning rates times 1.41421 "
        "(sqrt), reached in 20 steps. The result depends on these changes: hp.GrowBatch('sqrt', warmup_steps=20, "
        "schedule={1: 32, 58: 64}) repeats them"
    )
    most = growth.next_schedule(terms("constant"), (), 30, 0, 0, 20).reason
    assert "the most that is allowed; learning rates stay as they are" in most and "session.batches lists them" in most
    by_hand = growth.terms_of(GrowBatch("linear", schedule={1: 32, 9: 64}), 32, 4)
    assert by_hand is not None
    found = growth.next_schedule(by_hand, (), 3, 0, 0, 7)
    assert found.value == ((0, 8), (8, 16)) and "that of the schedule: {1: 32, 9: 64}" in found.reason
    assert growth.unlisted({"1": 32, "9": 64}, 4) == found.value


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "quadratic"}, "rule of hp.GrowBatch is 'quadratic'; expected one of linear, sqrt, constant"),
        ({"rule": "linear"}, "needs base_members"),
        ({"rule": "linear", "base_members": 2}, "needs base_members"),
        ({"rule": "linear", "base_members": 2, "most": 64, "schedule": {1: 32}}, "needs base_members|leave out"),
        ({"rule": "linear", "base_members": 0, "most": 64}, "expected 1 or more members"),
        ({"rule": "linear", "base_members": 2, "most": 16}, "expected at least global_batch, which is 32"),
        ({"rule": "linear", "schedule": {1: 32}, "warmup_steps": -1}, "expected 0 or more steps"),
        ({"rule": "linear", "schedule": {0: 32}}, "from step 1 on, such as"),
        ({"rule": "linear", "schedule": {2: 32}}, "from step 1 on, such as"),
        ({"rule": "linear", "schedule": {1: 30}}, "expected a multiple of micro_batch, which is 4"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        growth.terms_of(GrowBatch(**settings), 32, 4)


def test_another_object_is_refused() -> None:
    with pytest.raises(SpecError, match="grow is a dict; expected an hp.GrowBatch"):
        growth.terms_of({1: 32}, 32, 4)  # type: ignore[arg-type]
