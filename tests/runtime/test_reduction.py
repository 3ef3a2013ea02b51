"""Sums with the same bits for every world size, every way the work was shared, through sockets or shared memory."""

from __future__ import annotations

import gc
import random
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.policy.batching import Node, assign, assign_missing, cover, holdings_of
from jupyter_hyperpod.runtime.comm.handshake import KeyRenewal
from jupyter_hyperpod.runtime.comm.mesh import Mesh, PeerLost
from jupyter_hyperpod.runtime.comm.reduction import Buffer, FinishedNodes, Layout, Reduction, token_of
from jupyter_hyperpod.runtime.comm.shared_memory import Segment

LAYOUT = Layout(
    [
        torch.nn.Parameter(torch.zeros(7, 5)),
        torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)),
        torch.nn.Parameter(torch.zeros(33)),
        torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16)),
    ],
    words=37,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Members are threads here: more threads inside each would only stand in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gradient(leaf: int) -> Buffer:
    """What micro-batch `leaf` would have: its own random numbers of very different sizes."""
    generator = torch.Generator().manual_seed(leaf)
    buffer = Buffer(LAYOUT)
    for flat in buffer.flats:
        scale = 10.0 ** torch.randint(-6, 7, flat.shape, generator=generator)
        flat.copy_(torch.randn(flat.shape, generator=generator) * scale)
    return buffer


def add(leaf: int, finished: FinishedNodes) -> None:
    buffer, adding = finished.open(leaf)
    for kept, flat in zip(buffer.flats, gradient(leaf).flats, strict=True):
        kept.add_(flat) if adding else kept.copy_(flat)
    finished.close(leaf, buffer)


def reduce_all(
    count: int, shares: Sequence[Sequence[int]], near: bool, held: Sequence[Sequence[Node]] | None = None
) -> list[list[bytes]]:
    """Run one reduction of real members (threads, connections); returns each one's result as bytes."""
    world = len(shares)
    links: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for a in range(world):
            for b in range(a + 1, world):
                links[a][b], links[b][a] = socket.create_connection(server.getsockname()), server.accept()[0]
    holdings = holdings_of(held or [()] * world, shares, count)

    def member(rank: int) -> list[bytes]:
        mesh = Mesh(1, rank, links[rank], KeyRenewal(b"", rank, {}))
        finished = FinishedNodes(LAYOUT, count)
        for leaf in [*(leaf for low, high in (held[rank] if held else ()) for leaf in range(low, high)), *shares[rank]]:
            add(leaf, finished)
        before = {node: [flat.clone() for flat in buffer.flats] for node, buffer in finished.nodes.items()}
        peers = frozenset(range(world)) - {rank} if near else frozenset()
        reduction = Reduction(LAYOUT)
        weights = torch.zeros(count, dtype=torch.float64)
        for low, high in holdings[rank]:
            weights[low:high] = 1.0
        result = reduction.reduce(
            finished, holdings, rank, peers, [], lambda s, r: mesh.exchange(s, r, -1, lambda: None), weights
        )
        for node, flats in before.items():
            for flat, kept in zip(finished.nodes[node].flats, flats, strict=True):
                assert torch.equal(flat, kept), "the nodes stay as they were"
        return [flat.contiguous().view(torch.uint8).numpy().tobytes() for flat in result.flats]

    try:
        with ThreadPoolExecutor(world) as pool:
            return [future.result(60) for future in [pool.submit(member, rank) for rank in range(world)]]
    finally:
        for ends in links:
            for link in ends.values():
                link.close()


@pytest.mark.parametrize("near", [False, True], ids=["sockets", "shared memory"])
@pytest.mark.parametrize("count", [1, 5, 8, 13])
def test_every_world_size_gives_the_same_bits(count: int, near: bool) -> None:
    expected = reduce_all(count, assign(count, 1), near)[0]
    for world in (2, 3, 4, 6):
        for result in reduce_all(count, assign(count, world), near):
            assert result == expected


@pytest.mark.parametrize("near", [False, True], ids=["sockets", "shared memory"])
def test_words_are_summed_and_gradients_divided(near: bool) -> None:
    expected: torch.Tensor = sum(gradient(leaf).words for leaf in range(4))  # type: ignore[assignment, misc]
    for words in (result[-2] for result in reduce_all(4, assign(4, 3), near)):
        assert torch.equal(torch.frombuffer(bytearray(words), dtype=torch.int64), expected)
    last = [sum(float(gradient(leaf).gradients[1][0]) for leaf in pair) for pair in ((0, 1), (2, 3))]
    for result in reduce_all(4, assign(4, 2), near):
        doubles = torch.frombuffer(bytearray(result[1]), dtype=torch.float64)
        assert float(doubles[0]) == (last[0] + last[1]) * 0.25


def test_sockets_and_shared_memory_give_the_same_bits() -> None:
    assert reduce_all(8, assign(8, 3), True) == reduce_all(8, assign(8, 3), False)


def test_sums_in_blocks_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reduce_all(8, assign(8, 1), True)
    for block in (1, 5, 16):
        monkeypatch.setattr("jupyter_hyperpod.runtime.comm.reduction.BLOCK", block)
        assert reduce_all(8, assign(8, 3), True) == 3 * expected


@given(st.integers(1, 16), st.integers(1, 4), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=20)
def test_any_salvage_gives_the_same_bits(count: int, world: int, rng: random.Random, near: bool) -> None:
    owners = [rng.randrange(-1, world) for _ in range(count)]
    held = [cover([(leaf, leaf + 1) for leaf in range(count) if owners[leaf] == rank], count) for rank in range(world)]
    expected = reduce_all(count, assign(count, 1), False)[0]
    for result in reduce_all(count, assign_missing(count, held), near, held):
        assert result == expected


def test_the_ledger_sums_siblings_at_once_and_reuses_memory() -> None:
    finished = FinishedNodes(LAYOUT, 8)
    for leaf in range(8):
        assert not finished.holds(leaf)
        add(leaf, finished)
        assert finished.holds(leaf)
        assert len(finished.nodes) <= 3
    assert list(finished.nodes) == [(0, 8)]
    root = finished.nodes[(0, 8)]
    finished.clear()
    assert not finished.nodes
    again = [finished.open(leaf) for leaf in (0, 2, 4, 6)]
    assert root in [buffer for buffer, _ in again]
    assert not any(adding for _, adding in again)


def test_the_gradients_are_views_of_the_flat_memory() -> None:
    buffer = Buffer(LAYOUT)
    for parameter, view in zip(LAYOUT.parameters, buffer.gradients, strict=True):
        assert view.shape == parameter.shape and view.dtype == parameter.dtype
        view.fill_(1)
    assert sum(int(flat.sum()) for flat in buffer.flats[:-1]) == sum(p.numel() for p in LAYOUT.parameters)


def test_the_version_tells_when_anybody_wrote() -> None:
    buffer = Buffer(LAYOUT)
    before = buffer.version
    assert buffer.version == before
    buffer.gradients[2].mul_(2)
    assert buffer.version != before


def test_a_result_that_was_given_up_keeps_its_memory() -> None:
    """A member that was excluded in the middle of reading it must not see the next step's numbers."""
    reduction = Reduction(LAYOUT)
    kept, given_up = reduction._results
    reduction.renew([kept])
    assert reduction.free_result([kept]) is not given_up
    assert kept in reduction._results


def test_a_neighbour_whose_memory_is_gone_is_a_lost_peer() -> None:
    reduction = Reduction(LAYOUT)
    token = token_of(Buffer(LAYOUT)).pack()
    gc.collect()
    with pytest.raises(PeerLost):
        reduction.attach(1, memoryview(token))


def test_two_results_take_turns_and_no_more_are_made_than_are_kept() -> None:
    made: list[int] = []

    def allocate(octets: int) -> Segment:
        made.append(octets)
        return Segment(octets)

    reduction = Reduction(Layout(LAYOUT.parameters, allocate=allocate))
    first = reduction.free_result([])
    second = reduction.free_result([first])
    assert first is not second
    assert reduction.free_result([second]) is first
    assert len(made) == 2, "the one that was not taken is not made again"
    assert reduction.free_result([first, second]) not in (first, second)
    assert len(made) == 3
    assert reduction.free_result([second]) is first
    assert len(reduction._results) == 2


def test_nodes_apart_use_the_buffers_that_are_free_and_give_them_back() -> None:
    finished = FinishedNodes(LAYOUT, 4)
    finished.prepare()
    add(0, finished)
    first = finished.nodes[0, 1]
    apart = finished.apart()
    add(0, apart)
    (other,) = apart.nodes.values()
    assert other is not first and finished.nodes == {(0, 1): first}
    apart.clear()
    add(2, finished)
    assert finished.nodes[2, 3] is other
