"""The fixed tree: whoever computes what, the same leaves are added in the same order."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.policy.batching import Node, assign, assign_missing, cover, leaves_of, share_sizes, slices, split

counts = st.integers(1, 40)
worlds = st.integers(1, 12)


def tree_sum(node: Node, values: dict[Node, float]) -> float:
    """What a reduction does, on plain floats."""
    if node in values:
        return values[node]
    left, right = split(node)
    return tree_sum(left, values) + tree_sum(right, values)


def subtree(node: Node, leaves: Sequence[float]) -> float:
    return tree_sum(node, {(i, i + 1): value for i, value in enumerate(leaves)})


@st.composite
def holdings(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """V micro-batches, and who has finished which: disjoint, anything may be missing."""
    count, world = draw(counts), draw(worlds)
    owners = draw(st.lists(st.integers(-1, world - 1), min_size=count, max_size=count))
    return count, [[leaf for leaf in range(count) if owners[leaf] == rank] for rank in range(world)]


@given(counts.filter(lambda n: n > 1))
def test_split_is_in_order_and_left_heavy(count: int) -> None:
    left, right = split((0, count))
    assert left[0] == 0 and left[1] == right[0] and right[1] == count
    size = left[1] - left[0]
    assert size & (size - 1) == 0 and size >= right[1] - right[0] > 0


@given(counts, worlds)
def test_shares_partition_the_batch(count: int, world: int) -> None:
    shares = assign(count, world)
    assert [leaf for share in shares for leaf in share] == list(range(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([1, 2, 4, 8]))
def test_powers_of_two_share_whole_subtrees(count: int, world: int) -> None:
    for share in assign(count, world):
        nodes = cover([(leaf, leaf + 1) for leaf in share], count)
        assert len(nodes) == (1 if share else 0)


@given(holdings())
def test_cover_keeps_the_leaves_and_is_as_small_as_can_be(case: tuple[int, list[list[int]]]) -> None:
    count, held = case
    for leaves in held:
        nodes = cover([(leaf, leaf + 1) for leaf in leaves], count)
        assert sorted(leaves_of(nodes)) == leaves
        assert sum(high - low for low, high in nodes) == len(leaves), "disjoint"
        assert list(nodes) == sorted(nodes)
        assert cover(nodes, count) == nodes
        siblings = {split(parent) for parent in _inner((0, count))}
        assert not any(left in nodes and right in nodes for left, right in siblings)


def _inner(node: Node) -> list[Node]:
    if node[1] - node[0] < 2:
        return []
    left, right = split(node)
    return [node, *_inner(left), *_inner(right)]


@given(holdings(), st.data())
def test_the_sum_over_any_holdings_has_the_same_bits(case: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    count, held = case
    numbers = st.floats(-1e30, 1e30, allow_nan=False)
    leaves = data.draw(st.lists(numbers, min_size=count, max_size=count))
    expected = subtree((0, count), leaves)
    nodes = [cover([(leaf, leaf + 1) for leaf in share], count) for share in held]
    shares = assign_missing(count, nodes)
    sums: dict[Node, float] = {}
    for had, share in zip(nodes, shares, strict=True):
        for node in cover([*had, *((leaf, leaf + 1) for leaf in share)], count):
            assert node not in sums
            sums[node] = subtree(node, leaves)
    assert struct.pack("d", tree_sum((0, count), sums)) == struct.pack("d", expected)


@given(holdings())
def test_nothing_held_is_computed_again_and_nothing_is_left_out(case: tuple[int, list[list[int]]]) -> None:
    count, held = case
    shares = assign_missing(count, [cover([(leaf, leaf + 1) for leaf in leaves], count) for leaves in held])
    given_out = [leaf for share in shares for leaf in share]
    had = [leaf for leaves in held for leaf in leaves]
    assert sorted(given_out + had) == list(range(count))
    assert given_out == sorted(given_out), "neighbours stay together"


@given(holdings())
def test_what_is_left_is_shared_evenly_and_newcomers_come_last(case: tuple[int, list[list[int]]]) -> None:
    count, held = case
    shares = assign_missing(count, [[(leaf, leaf + 1) for leaf in leaves] for leaves in held])
    sizes = list(map(len, shares))
    assert max(sizes) - min(sizes) <= 1
    for rank, size in enumerate(sizes):
        assert all(size <= sizes[other] for other, had in enumerate(held) if len(had) > len(held[rank]))


@given(holdings())
def test_what_is_left_goes_to_the_least_loaded_one_after_the_other(case: tuple[int, list[list[int]]]) -> None:
    count, held = case
    quota = [0] * len(held)
    for _ in range(count - sum(map(len, held))):
        quota[min(range(len(held)), key=lambda r: (quota[r], -len(held[r]), r))] += 1
    shares = assign_missing(count, [[(leaf, leaf + 1) for leaf in leaves] for leaves in held])
    assert list(map(len, shares)) == quota


@given(st.integers(1, 60), st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.3, 2.0, 3.7]), min_size=1, max_size=12))
def test_each_micro_batch_goes_to_the_member_that_would_end_first(count: int, paces: list[float]) -> None:
    world = len(paces)
    sizes = [int(count >= world)] * world
    if len(set(paces)) < 2:
        sizes = list(map(len, assign(count, world)))
    for _ in range(count - sum(sizes)):
        sizes[min(range(world), key=lambda r: ((sizes[r] + 1) * paces[r], r))] += 1
    assert share_sizes(count, world, paces) == sizes


@given(st.integers(0, 10_000), worlds)
def test_slices_partition_and_are_aligned(length: int, world: int) -> None:
    bounds = slices(length, world)
    assert len(bounds) == world
    assert bounds[0][0] == 0 and bounds[-1][1] == length
    assert all(a[1] == b[0] for a, b in zip(bounds, bounds[1:], strict=False))
    assert all(start % 16 == 0 or start == length for start, _ in bounds)
