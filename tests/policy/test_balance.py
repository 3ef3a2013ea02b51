"""Who is a straggler, and shares that follow the members' pace."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.balance import Window, _median_of_others, even_again, replace, share_out, stragglers
from jupyter_hyperpod.policy.batching import assign

paces = st.lists(st.floats(0.1, 100), min_size=1, max_size=8)


def windows(*each: float, steps: int = 10, span_s: float = 2.5, share: int = 4) -> list[Window]:
    return [
        Window(f"m{rank}", f"node-{rank + 1}", rank, (pace,) * steps, span_s, share) for rank, pace in enumerate(each)
    ]


def test_one_that_is_slow_for_long_is_a_straggler() -> None:
    found = stragglers(windows(0.1, 0.1, 0.31), frozenset())
    assert list(found) == ["m2"] and found["m2"].value == pytest.approx(3.1)
    assert found["m2"].reason == (
        "rank 2 on node-3 needs 3.1 times as long for a micro-batch as the others: 0.310 s, median of the others "
        "0.100 s, over 10 steps"
    )


@pytest.mark.parametrize(
    "quiet",
    [
        windows(0.1, 0.1, 0.14),
        windows(0.1, 0.1, 0.9, steps=4),
        windows(0.1, 0.1, 0.9, span_s=1.0),
        windows(0.001, 0.001, 0.004),
        windows(0.5),
    ],
    ids=["nearly as fast", "few steps", "not for long", "not worth it", "alone"],
)
def test_who_is_none(quiet: list[Window]) -> None:
    assert stragglers(quiet, frozenset()) == {}


def test_what_is_just_worth_it_and_just_long_enough_counts() -> None:
    assert list(stragglers(windows(0.010, 0.010, 0.018, span_s=2.0), frozenset())) == ["m2"]
    assert stragglers(windows(0.010, 0.010, 0.018, share=2), frozenset()) == {}


def test_single_slow_steps_make_no_straggler() -> None:
    uneven = Window("m1", "node-2", 1, (0.1, 9.0, 0.1, 0.1, 9.0, 0.1, 0.1), 3.0, 4)
    assert stragglers([*windows(0.1), uneven], frozenset()) == {}


def test_it_stays_one_until_it_is_as_fast_as_the_others() -> None:
    assert stragglers(windows(0.1, 0.1, 0.13), {"m2"})
    assert not stragglers(windows(0.1, 0.1, 0.119), {"m2"})


def test_what_was_known_is_kept_while_nothing_is_known() -> None:
    assert list(stragglers(windows(0.1, 0.4, steps=1), {"m1"})) == ["m1"]


@pytest.mark.parametrize("seed", range(20))
def test_noise_makes_no_stragglers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        noisy = [
            Window(f"m{r}", "n", r, tuple(0.1 * rng.lognormvariate(0, 0.4) for _ in range(20)), 2.5, 4)
            for r in range(4)
        ]
        assert not stragglers(noisy, frozenset())


def test_shares_change_only_where_that_is_worth_it() -> None:
    assert share_out(8, [3, 3, 2], [1, 1, 1]).value is None
    decision = share_out(8, [3, 3, 2], [1, 4, 1])
    assert decision.value == (1, 4, 1)
    assert decision.reason == "4 1 3 micro-batches instead of 3 3 2: a step takes 67% less"
    assert share_out(3, [1, 1, 1], [1, 4, 1]).value is None, "nobody is left without"
    assert share_out(40, [20, 20], [1, 1.1]).value is None, "5 % less is not worth it"
    assert even_again(8, [4, 1, 3]).value == (1, 1, 1)
    assert even_again(8, [3, 3, 2]).value is None


def test_a_spare_replaces_who_stays_slow() -> None:
    assert replace({"m1": 0.0}, 11.0, 1).value == "m1"
    assert replace({"m1": 0.0}, 11.0, 0).value is None
    assert replace({"m1": 5.0}, 11.0, 1).value is None


@given(st.integers(1, 64), paces)
def test_any_paces_share_out_everything_in_order(count: int, each: list[float]) -> None:
    shares = assign(count, len(each), each)
    assert [leaf for share in shares for leaf in share] == list(range(count))
    if count >= len(each):
        assert all(shares)


@given(st.integers(1, 64), st.integers(1, 8), st.floats(0.1, 10))
def test_equal_paces_are_the_ordinary_shares(count: int, world: int, pace: float) -> None:
    assert assign(count, world, [pace] * world) == assign(count, world)


@given(st.integers(8, 64), st.lists(st.floats(1, 10), min_size=2, max_size=6))
def test_no_micro_batch_moved_would_make_the_slowest_faster(count: int, each: list[float]) -> None:
    sizes = [len(share) for share in assign(count, len(each), each)]
    slowest = max(size * pace for size, pace in zip(sizes, each, strict=True))
    for giver in range(len(each)):
        for taker in range(len(each)):
            if giver != taker and sizes[giver] > 1:
                moved = list(sizes)
                moved[giver] -= 1
                moved[taker] += 1
                assert max(s * p for s, p in zip(moved, each, strict=True)) >= slowest - 1e-9


@given(st.lists(st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.7]) | st.floats(0.01, 10), min_size=2, max_size=9))
def test_each_member_is_compared_with_the_median_of_the_others(each: list[float]) -> None:
    in_order = sorted(each)
    for place, own in enumerate(each):
        assert _median_of_others(in_order, own) == median(each[:place] + each[place + 1 :])
