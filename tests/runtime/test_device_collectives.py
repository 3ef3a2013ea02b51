"""A process group under gloo gives the same bits as the host mesh, and is given up in the middle of a collective."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.policy.batching import Node, assign, assign_missing, cover, holdings_of
from jupyter_hyperpod.runtime.comm import process_group
from jupyter_hyperpod.runtime.comm.choice import chosen
from jupyter_hyperpod.runtime.comm.collectives import Collectives
from jupyter_hyperpod.runtime.comm.device_collectives import MOST_FAILURES, TESTED, DeviceCollectives
from jupyter_hyperpod.runtime.comm.host_collectives import HostCollectives
from jupyter_hyperpod.runtime.comm.kinds import gloo
from jupyter_hyperpod.runtime.comm.mesh import Mesh, PeerLost
from jupyter_hyperpod.runtime.comm.process_group import ProcessGroup
from jupyter_hyperpod.runtime.comm.reduction import FinishedNodes, Layout

from .meshes import meshes, nothing, together

PARAMETERS = [
    torch.zeros(7, 5),
    torch.zeros(3, dtype=torch.float64),
    torch.zeros(333),
    torch.zeros(2, 2, dtype=torch.bfloat16),
]
COUNT = 7
Work = Callable[[Collectives], Any]


class Member:
    """One member's place in a mesh of the test."""

    host, generation = "127.0.0.1", 1
    near: frozenset[int] = frozenset()
    neighbours: frozenset[Any] = frozenset()

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.rank, self.world_size = mesh, mesh.rank, mesh.world_size
        self.warnings: list[str] = []
        self.collectives = "auto"

    def exchange(self, sends: Any, receives: Any) -> None:
        self.mesh.exchange(sends, receives, -1, nothing)

    def wait_for(self, descriptor: int, timeout_s: float | None = None) -> bool:
        return self.mesh.wait_for(descriptor, timeout_s, -1, nothing)

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> Any:
        raise lost

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Members are threads here: more threads inside each would only stand in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fill(finished: FinishedNodes, leaf: int) -> None:
    """Add what micro-batch `leaf` would have: its own random numbers of very different sizes."""
    generator = torch.Generator().manual_seed(leaf)
    buffer, adding = finished.open(leaf)
    for flat in buffer.flats:
        scale = 10.0 ** torch.randint(-6, 7, flat.shape, generator=generator)
        own = (torch.randn(flat.shape, generator=generator) * scale).to(flat.dtype)
        flat.add_(own) if adding else flat.copy_(own)
    finished.close(leaf, buffer)


def opened(kind: str, member: Member) -> Collectives:
    lay_out = partial(Layout, PARAMETERS, 5, 9)
    if kind == "host":
        return HostCollectives(member, lay_out())
    place = "one GPU" if kind == "shared" else ""
    return DeviceCollectives(member, replace(gloo("127.0.0.1"), place=place), lay_out)


def reduced(
    kind: str,
    shares: Sequence[Sequence[int]],
    held: Sequence[Sequence[Node]] | None = None,
    one_collective: bool = False,
) -> list[list[bytes]]:
    """The result of one step on every member, as bytes: those in use, of every flat tensor."""
    world = len(shares)
    holdings = holdings_of(held or [()] * world, shares, COUNT)
    connected = meshes(world)

    def member(rank: int) -> list[bytes]:
        collectives = opened(kind, Member(connected[rank]))
        finished = FinishedNodes(collectives.layout, COUNT)
        leaves = [leaf for low, high in (held[rank] if held else ()) for leaf in range(low, high)]
        for leaf in [*leaves, *shares[rank]]:
            fill(finished, leaf)
        weights = torch.zeros(COUNT, dtype=torch.float64)
        weights[[*leaves, *shares[rank]]] = 1.5
        before = {node: [flat.clone() for flat in buffer.flats] for node, buffer in finished.nodes.items()}
        collectives.begin([])
        if (
            one_collective
            and isinstance(collectives, DeviceCollectives)
            and isinstance(collectives._group, ProcessGroup)
        ):
            collectives._group._all_to_all = True
        results = []
        for _ in range(2):  # the second time, memory is used again
            result = collectives.reduce(finished, holdings, [], weights, True)
            results.append([flat.contiguous().view(torch.uint8).numpy().tobytes() for flat in result.flats])
        assert results[0] == results[1]
        for node, flats in before.items():
            for flat, kept in zip(finished.nodes[node].flats, flats, strict=True):
                assert torch.equal(flat, kept), "the nodes stay as they were"
        collectives.release()
        return results[0]

    try:
        return together(world, member)
    finally:
        for mesh in connected:
            mesh.close()


def test_a_process_group_gives_the_bits_of_the_host_mesh() -> None:
    expected = reduced("host", assign(COUNT, 1))[0]
    for world in (1, 2, 3, 4):
        assert reduced("gloo", assign(COUNT, world)) == [expected] * world
    assert reduced("gloo", assign(COUNT, 3), one_collective=True) == [expected] * 3


def test_members_that_share_a_gpu_get_the_same_bits_over_their_links() -> None:
    expected = reduced("host", assign(COUNT, 1))[0]
    for world in (1, 2, 3, 4):
        assert reduced("shared", assign(COUNT, world)) == [expected] * world
    uneven, halves = [[0, 1, 2], [3, 4, 5, 6]], [[0], [1], [2, 3, 4, 5, 6]]
    assert reduced("shared", uneven) == [expected] * 2
    assert reduced("shared", halves) == [expected] * 3


def begun(places: Sequence[str], asked: str = "auto", descriptions: Sequence[str] = ("cpu", "cpu")) -> list[Any]:
    """What each of two members says when its generation begins: its group and its warnings, or an error."""
    connected = meshes(2)

    def member(rank: int) -> Any:
        links = Member(connected[rank])
        links.collectives = asked
        kind = replace(gloo("127.0.0.1"), place=places[rank], description=descriptions[rank])
        collectives = DeviceCollectives(links, kind, partial(Layout, PARAMETERS), gloo("127.0.0.1"))
        try:
            collectives.begin([])
            collectives.begin([])
        except TrainingError as error:
            return str(error)
        found = type(collectives._group).__name__, collectives.pair is None, links.warnings
        collectives.release()
        return found

    try:
        return together(2, member)
    finally:
        for mesh in connected:
            mesh.close()


def test_one_gpu_of_two_members_is_seen_before_a_process_group_forms() -> None:
    said = "ranks 0 and 1 share one GPU, and gloo takes one per member"
    assert begun(["a", "b"]) == [("ProcessGroup", False, [TESTED]), ("ProcessGroup", False, [])]
    warned = f"{said}: gradients go through host memory"
    assert begun(["a of x", "a of x"]) == [("LinksGroup", True, [warned]), ("LinksGroup", True, [])]
    (error, other) = begun(["a", "a"], "gloo")
    assert error == other and error.startswith(f"{said}: start fewer members")
    (error, other) = begun(["a", "b"], descriptions=["H100", "A100"])
    assert error == other and "different devices (A100, H100)" in error


def test_slices_longer_than_a_message_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "PIECE_BYTES", 96)
    expected = reduced("host", assign(COUNT, 1))[0]
    for world in (2, 4):
        assert reduced("gloo", assign(COUNT, world)) == [expected] * world


def test_what_is_left_after_a_loss_gives_the_same_bits() -> None:
    expected = reduced("host", assign(COUNT, 1))[0]
    for seed in range(4):
        rng = random.Random(seed)
        world = rng.randint(2, 4)
        owners = [rng.randrange(-1, world) for _ in range(COUNT)]
        held = [
            cover([(leaf, leaf + 1) for leaf in range(COUNT) if owners[leaf] == rank], COUNT) for rank in range(world)
        ]
        assert reduced("gloo", assign_missing(COUNT, held), held) == [expected] * world


def test_a_member_that_is_lost_in_a_collective_releases_the_others() -> None:
    """Rank 0 waits in a collective that rank 1 never enters: it is released when the mesh says that rank 1 is gone."""
    connected = meshes(2)
    waits, released = threading.Event(), threading.Event()

    def member(rank: int) -> str:
        collectives = opened("gloo", Member(connected[rank]))
        assert isinstance(collectives, DeviceCollectives)
        collectives.begin([])
        group = collectives._group
        assert group is not None
        result = collectives._free_result([])
        if rank == 1:
            assert waits.wait(50)
            connected[1].close()
            assert released.wait(50), "gloo's own connections are still there"
            group.abandon()
            return ""
        waits.set()
        with pytest.raises(PeerLost):
            group.gather_slices(torch.zeros(2 << 20, dtype=torch.uint8))
        released.set()
        collectives._give_up([])
        assert collectives._free_result([]) is not result, "the collective may still write to it"
        return "released"

    assert together(2, member)[0] == "released"
    connected[0].close()


def test_collectives_that_fail_again_and_again_end_the_job() -> None:
    """Both members are there, but what they ask of gloo cannot be done: they regroup, and then give up in words."""
    connected = meshes(2)
    one, two = torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)

    def member(rank: int) -> list[str]:
        own = Member(connected[rank])
        collectives = opened("gloo", own)
        assert isinstance(collectives, DeviceCollectives)
        for _ in range(MOST_FAILURES):
            collectives.begin([])
            assert collectives._group is not None
            with pytest.raises(PeerLost):
                collectives._group.run(lambda backend: backend.alltoall_base(two, one, [1, 1], [1, 1]).wait())
            collectives._give_up([])
        with pytest.raises(TrainingError, match="failed 3 times one after the other, and no member was lost: .*plit"):
            collectives.begin([])
        return own.warnings

    for warnings in together(2, member):
        assert len(warnings) == MOST_FAILURES
    for mesh in connected:
        mesh.close()


def test_a_collective_that_hangs_is_given_up_by_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "LATE_S", 0.3)
    connected = meshes(2)
    ended = threading.Event()

    def member(rank: int) -> str:
        collectives = opened("gloo", Member(connected[rank]))
        assert isinstance(collectives, DeviceCollectives)
        collectives.begin([])
        assert collectives._group is not None
        with pytest.raises(PeerLost):
            if rank == 0:
                collectives._group.run(lambda backend: ended.wait() and None)
            collectives._group.gather_slices(torch.zeros(2 << 10, dtype=torch.uint8))
        told = collectives._group.failed
        collectives._give_up([])
        return told

    try:
        assert together(2, member) == ["it did not end within 0 s"] * 2
    finally:
        ended.set()
    for mesh in connected:
        mesh.close()


def test_members_that_cannot_be_connected_say_so_on_every_member() -> None:
    connected = meshes(2)

    def member(rank: int) -> str:
        kind = gloo("127.0.0.1" if rank == 0 else "no such host")
        collectives = DeviceCollectives(Member(connected[rank]), kind, partial(Layout, PARAMETERS))
        with pytest.raises(TrainingError, match=r"rank 1 says: .*--collectives host") as caught:
            collectives.begin([])
        return str(caught.value)

    first, second = together(2, member)
    assert first == second
    for mesh in connected:
        mesh.close()


@pytest.mark.parametrize(
    "asked, device, nccl, expected",
    [
        ("auto", "cpu", True, "host"),
        ("auto", "cuda", True, "nccl"),
        ("auto", "cuda", False, "host"),
        ("gloo", "cpu", False, "gloo"),
        ("host", "cuda", True, "host"),
    ],
)
def test_the_device_chooses(asked: str, device: str, nccl: bool, expected: str) -> None:
    assert chosen(asked, device, nccl) == expected


@pytest.mark.parametrize(
    "asked, device, nccl, words",
    [
        ("nccl", "cpu", True, "whose tensors NCCL cannot exchange"),
        ("nccl", "cuda", False, "built without NCCL"),
        ("auto", "xla", True, "Neuron"),
        ("auto", "mps", True, "expected the CPU or a CUDA device"),
        ("mpi", "cpu", True, "expected one of auto, host, gloo, nccl"),
    ],
)
def test_what_cannot_exchange_is_refused_in_words(asked: str, device: str, nccl: bool, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        chosen(asked, device, nccl)
