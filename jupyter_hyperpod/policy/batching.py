"""Decides which of the V fixed micro-batches each member computes, and the fixed tree that sums their gradients.

The tree is a function of V alone, never of the membership: node [lo, hi) splits at ``lo`` plus the largest power
of two below its length. So a sum over [0, V) has the same bits, no matter which member computed which leaf.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import islice

Node = tuple[int, int]  # micro-batches lo..hi-1, summed
ALIGNED = 16  # elements


def split(node: Node) -> tuple[Node, Node]:
    """Return the two children of a node of at least two leaves."""
    low, high = node
    middle = low + (1 << ((high - low - 1).bit_length() - 1))
    return (low, middle), (middle, high)


def assign(micro_batches: int, world_size: int, paces: Sequence[float] | None = None) -> tuple[tuple[int, ...], ...]:
    """Contiguous shares, sizes differing by at most one (3 members, 128: 43 43 42).

    Contiguous blocks are whole sub-trees where V and the world size are powers of two, so they cost no extra traffic.
    With ``paces`` (how long each member needs per micro-batch) the sizes minimise the time until the last member is
    done. Where there are enough, every member gets at least one, so that its pace stays known.
    """
    return _cut(range(micro_batches), share_sizes(micro_batches, world_size, paces))


def _cut(leaves: Sequence[int], sizes: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Neighbouring parts of these sizes."""
    left = iter(leaves)
    return tuple(tuple(islice(left, size)) for size in sizes)


def share_sizes(micro_batches: int, world_size: int, paces: Sequence[float] | None = None) -> list[int]:
    """How many micro-batches each member computes, see `assign`."""
    if paces is None or len(set(paces)) < 2:
        quotient, extra = divmod(micro_batches, world_size)
        return [quotient + (rank < extra) for rank in range(world_size)]
    sizes = [int(micro_batches >= world_size)] * world_size
    ends = [((sizes[rank] + 1) * paces[rank], rank) for rank in range(world_size)]  # with one more micro-batch
    heapify(ends)
    for _ in range(micro_batches - sum(sizes)):
        rank = ends[0][1]
        sizes[rank] += 1
        heapreplace(ends, ((sizes[rank] + 1) * paces[rank], rank))
    return sizes


def leaves_of(nodes: Iterable[Node]) -> frozenset[int]:
    """The micro-batches that `nodes` sum."""
    return frozenset(leaf for low, high in nodes for leaf in range(low, high))


def assign_missing(micro_batches: int, held: Sequence[Sequence[Node]]) -> tuple[tuple[int, ...], ...]:
    """Share out the micro-batches that no member holds, so that all members have about equal work left.

    ``held[rank]`` are the disjoint tree nodes that a member has finished in this step; they are not computed again.
    Members that hold most come first, because a member that holds nothing may have to wait for the state; among equals
    the lower rank comes first. Neighbours stay together.
    """
    done = [len(leaves_of(nodes)) for nodes in held]
    missing = sorted(set(range(micro_batches)) - set().union(*(leaves_of(nodes) for nodes in held)))
    order = sorted(range(len(held)), key=lambda rank: (-done[rank], rank))
    quotient, extra = divmod(len(missing), len(held))
    quota = [quotient] * len(held)
    for rank in order[:extra]:
        quota[rank] += 1
    return _cut(missing, quota)


def cover(nodes: Iterable[Node], micro_batches: int) -> tuple[Node, ...]:
    """Merge `nodes` (disjoint nodes of the tree) into the fewest tree nodes with the same leaves, in order."""
    leaves = sorted(leaves_of(nodes))

    def walk(node: Node, first: int, last: int) -> Iterable[Node]:  # leaves[first:last] are in this node
        if last - first == node[1] - node[0]:
            yield node
        elif first < last:
            left, right = split(node)
            middle = bisect_left(leaves, right[0], first, last)
            yield from walk(left, first, middle)
            yield from walk(right, middle, last)

    return tuple(walk((0, micro_batches), 0, len(leaves)))


def root_of(holdings: Iterable[Iterable[Node]]) -> Node:
    """The root of the tree that these nodes cover."""
    return 0, max(high for nodes in holdings for _, high in nodes)


def holdings_of(
    held: Sequence[Sequence[Node]], shares: Sequence[Sequence[int]], micro_batches: int
) -> tuple[tuple[Node, ...], ...]:
    """The nodes each member will have when it has computed its share."""
    return tuple(
        cover([*nodes, *((leaf, leaf + 1) for leaf in share)], micro_batches)
        for nodes, share in zip(held, shares, strict=True)
    )


def slices(length: int, world_size: int) -> tuple[tuple[int, int], ...]:
    """Cut ``length`` elements into one range per owner, aligned so that vector loads stay aligned."""
    blocks = -(-length // ALIGNED)
    bounds = [min(length, ALIGNED * (blocks * rank // world_size)) for rank in range(world_size)] + [length]
    return tuple(zip(bounds, bounds[1:], strict=False))
