"""Gradients in the memory of the parameters' device, exchanged by a process group of torch.distributed.

Members that share a GPU, which NCCL does not connect, exchange them over the job's own connections.

Every member gives each owner that owner's slice of its finished nodes, the owner adds them in the order of the tree,
and all slices are gathered: the same sums as in `Reduction`, so the same bits. No library is asked to add. Slices are
of bytes, so one exchange serves all types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...core.errors import TrainingError
from ...core.units import plural
from ...policy.batching import Node, root_of
from .collectives import Links
from .kinds import Kind, refuse_unequal
from .meeting_store import gather
from .mesh import all_gather
from .process_group import ProcessGroup
from .reduction import Buffer, FinishedNodes, Layout, as_bytes, flags_of, is_finite, tree_sum, weighed
from .shared_memory import ALIGN_BYTES, aligned

SLACK_BYTES = 1 << 16  # a buffer is cut into equal slices, so the last one may reach beyond what is used
MOST_FAILURES = 3  # of collectives, one after the other, that no loss explains
CPU_BLOCK_BYTES = 1 << 18  # what is summed, scaled and checked before the next: it stays in the cache of the CPU
TESTED = (
    "NCCL exchanges the gradients. It was tested on one GPU, whose members posed as several hosts; not between GPUs, "
    "and not with a member that is lost in the middle of an exchange: see docs/devices.md, run `jupyter hyperpod "
    "validate --devices`, and use checkpoint="
)
MOST_MEMBERS = SLACK_BYTES // ALIGN_BYTES


class DeviceMemory:
    """``octets`` bytes on a device, and slack."""

    def __init__(self, octets: int, device: torch.device) -> None:
        self.tensor = torch.zeros(octets + SLACK_BYTES, dtype=torch.uint8, device=device)

    def carve(self, shapes: Sequence[tuple[torch.dtype, int]]) -> list[torch.Tensor]:
        """One 1-D tensor for each (dtype, length), laid end to end, aligned."""
        return [part.view(dtype) for dtype, part in _parts(self.tensor, shapes)]


class DeviceCollectives:
    """The members of ``links`` exchange gradients by a process group of ``kind``, new in every generation.

    ``lay_out(allocate)`` returns the layout of buffers in memory of `allocate`. ``pair``: see `Collectives`.
    """

    def __init__(
        self,
        links: Links,
        kind: Kind,
        lay_out: Callable[[Callable[[int], DeviceMemory]], Layout],
        pair: Kind | None = None,
    ) -> None:
        self.pair = self._pair = pair
        self._links = links
        self._kind = kind
        self.layout = lay_out(lambda octets: DeviceMemory(octets, kind.device))
        self._block = CPU_BLOCK_BYTES if kind.device.type == "cpu" else max(1, self.layout.octets)
        self._results: list[Buffer] = []
        self._scratch: dict[str, torch.Tensor] = {}
        self._group: ProcessGroup | LinksGroup | None = None
        self._warned = ""
        self._failures: list[str] = []

    def begin(self, keep: Sequence[Buffer]) -> None:
        """Form the generation's process group. Raises Regroup, and TrainingError where it cannot be formed."""
        self._leave()
        if len(self._failures) >= MOST_FAILURES:
            raise TrainingError(
                f"collectives of {self._kind.name} failed {len(self._failures)} times one after the other, and no "
                f"member was lost: {self._failures[-1]}; submit with --collectives host, which uses the job's own "
                "connections"
            )
        if self._links.world_size > MOST_MEMBERS:
            raise TrainingError(
                f"{plural(self._links.world_size, 'member')} exchange gradients by {self._kind.name}; expected at most "
                f"{MOST_MEMBERS}: submit with --collectives host"
            )
        if self._links.world_size > 1:
            shared = self._is_shared()
            self.pair = None if shared else self._pair
            self._group = LinksGroup(self._links) if shared else ProcessGroup(self._kind, self._links)

    def reduce(
        self,
        finished: FinishedNodes,
        holdings: Sequence[tuple[Node, ...]],
        keep: Sequence[Buffer],
        weights: torch.Tensor,
        check_finite: bool,
    ) -> Buffer:
        """See `Collectives.reduce`."""
        result = self._free_result(keep)
        links = self._links
        # nobody enters a collective before all others can: it lasts no longer than its transfer, and a member that is
        # lost while it computes is noticed here, where waiting can be interrupted
        shown = all_gather(links.exchange, links.rank, len(holdings), bytes(as_bytes(weights)))
        total, stops = weighed(number for said in shown for number in memoryview(said).cast("d"))
        try:
            sound = self._reduce(result, finished, holdings, 1.0 / total if total else 1.0, check_finite)
        except BaseException:
            self._give_up(keep)
            raise
        if check_finite:
            flags = all_gather(links.exchange, links.rank, len(holdings), bytes([sound]))
            sound = all(flag[0] for flag in flags)
        result.meta[-1] = flags_of(sound, stops)
        self._failures.clear()
        return result

    def _reduce(
        self,
        result: Buffer,
        finished: FinishedNodes,
        holdings: Sequence[tuple[Node, ...]],
        scale: float,
        check_finite: bool,
    ) -> bool:
        """Fill `result`; False where this member's slice of it is checked and not finite."""
        rank, members = self._links.rank, len(holdings)
        size = aligned(-(-self.layout.octets // members))
        nodes = self._collect(finished, holdings, size)
        whole = _octets(result)[: size * members]
        own = whole[rank * size : (rank + 1) * size]
        sound, root = True, root_of(holdings)
        for index, dtype, low, high in _within(self.layout.shapes, rank * size, size):
            for begin in range(low, high, self._block):
                end = min(begin + self._block, high)
                out = own[begin:end].view(dtype)
                tree_sum(root, {node: part[begin:end].view(dtype) for node, part in nodes.items()}, out)
                if index < len(self.layout.lengths):  # a gradient
                    out.mul_(scale)
                    sound = sound and not (check_finite and not is_finite(out))
        if self._group is not None:
            self._group.gather_slices(whole)
        return sound

    def _collect(
        self, finished: FinishedNodes, holdings: Sequence[tuple[Node, ...]], size: int
    ) -> dict[Node, torch.Tensor]:
        """This rank's slice, ``size`` bytes, of every node of every member."""
        rank = self._links.rank
        found: dict[Node, torch.Tensor] = {}
        for turn in range(max(map(len, holdings)) if self._group is not None else 0):
            holders = [peer for peer, nodes in enumerate(holdings) if len(nodes) > turn]
            own = _octets(finished.nodes[holdings[rank][turn]]) if rank in holders else None
            received = self._scratch_of(f"turn {turn}", size * len(holders))
            assert self._group is not None
            self._group.exchange_slices(None if own is None else own[: size * len(holdings)], received, holders)
            for place, peer in enumerate(holders):
                found[holdings[peer][turn]] = received[place * size : (place + 1) * size]
        for node in holdings[rank]:
            found[node] = _octets(finished.nodes[node])[rank * size : (rank + 1) * size]
        return found

    def send(self, result: Buffer, rank: int) -> None:
        """Send a result to a member that missed it, through host memory."""
        self._links.exchange([(rank, as_bytes(flat.cpu())) for flat in result.flats], [])

    def receive(self, donor: int, keep: Sequence[Buffer]) -> Buffer:
        """Receive a result that `donor` sends, in a buffer outside of `keep`. Raises Regroup."""
        result = self._free_result(keep)
        received = [torch.empty(flat.shape, dtype=flat.dtype) for flat in result.flats]
        self._links.exchange([], [(donor, as_bytes(flat)) for flat in received])
        for mine, theirs in zip(result.flats, received, strict=True):
            mine.copy_(theirs)
        return result

    def step_done(self) -> None:
        """Nothing of an earlier generation is left."""

    def release(self) -> None:
        """Give everything back: the session is over."""
        if self._group is not None:
            self._group.close()
        self._group, self._results, self._scratch = None, [], {}

    def _is_shared(self) -> bool:
        """Whether two members have one GPU. Raises TrainingError where NCCL was asked for, Regroup."""
        if not self._kind.place:
            return False
        links = self._links
        own = [self._kind.place, self._kind.description]
        shown = gather(links.exchange, links.rank, links.world_size, own)
        refuse_unequal(description for _, description in shown)
        ranks: dict[str, list[int]] = {}
        for rank, (place, _) in enumerate(shown):
            ranks.setdefault(place, []).append(rank)
        shared = next((found for found in ranks.values() if len(found) > 1), None)
        if shared is None:
            self._warn(TESTED)
            return False
        said = f"ranks {' and '.join(map(str, shared))} share one GPU, and {self._kind.name} takes one per member"
        if links.collectives == self._kind.name:
            raise TrainingError(f"{said}: start fewer members, or submit with --collectives auto or host")
        self._warn(f"{said}: gradients go through host memory")
        return True

    def _warn(self, text: str) -> None:
        if text != self._warned and self._links.rank == 0:
            self._links.warn(text)
            self._warned = text

    def _leave(self) -> None:
        """Leave the process group of an earlier generation."""
        if self._group is not None:
            self._group.abandon()
            self._group = None

    def _give_up(self, keep: Sequence[Buffer]) -> None:
        """A collective may go on in the background: never use again what it may write to."""
        if self._group is not None and self._group.failed:
            self._failures.append(self._group.failed)
        self._leave()
        self._results, self._scratch = [*keep], {}

    def _free_result(self, keep: Sequence[Buffer]) -> Buffer:
        free = [result for result in self._results if not any(result is kept for kept in keep)]
        chosen = free[0] if free else Buffer(self.layout)
        self._results = [*keep, chosen]
        return chosen

    def _scratch_of(self, name: str, size: int) -> torch.Tensor:
        """Scratch memory, ``size`` bytes."""
        scratch = self._scratch.get(name)
        if scratch is None or scratch.numel() < size:
            scratch = self._scratch[name] = torch.empty(size, dtype=torch.uint8, device=self._kind.device)
        return scratch[:size]


class LinksGroup:
    """Exchanges slices as `ProcessGroup` does, over the job's own connections and through host memory."""

    failed = ""

    def __init__(self, links: Links) -> None:
        self._links = links

    def exchange_slices(self, sent: torch.Tensor | None, received: torch.Tensor, holders: Sequence[int]) -> None:
        """See `ProcessGroup.exchange_slices`."""
        rank, size = self._links.rank, received.numel() // len(holders)
        given = [] if sent is None else list(self._to_host(sent).split(size))
        taken = list(_host_memory(received).split(size))
        self._links.exchange(
            [(peer, as_bytes(part)) for peer, part in enumerate(given) if peer != rank],
            [(peer, as_bytes(part)) for peer, part in zip(holders, taken, strict=True) if peer != rank],
        )
        for peer, part, there in zip(holders, taken, received.split(size), strict=True):
            if peer != rank:
                there.copy_(part)

    def gather_slices(self, whole: torch.Tensor) -> None:
        """See `ProcessGroup.gather_slices`."""
        rank, parts = self._links.rank, whole.chunk(self._links.world_size)
        own = self._to_host(parts[rank])
        taken = [_host_memory(part) for part in parts]
        peers = [peer for peer in range(len(parts)) if peer != rank]
        self._links.exchange(
            [(peer, as_bytes(own)) for peer in peers], [(peer, as_bytes(taken[peer])) for peer in peers]
        )
        for peer in peers:
            parts[peer].copy_(taken[peer])

    def close(self) -> None:
        """It holds nothing."""

    def abandon(self) -> None:
        """It holds nothing."""

    @staticmethod
    def _to_host(tensor: torch.Tensor) -> torch.Tensor:
        return _host_memory(tensor).copy_(tensor)


def _host_memory(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


def _octets(buffer: Buffer) -> torch.Tensor:
    assert isinstance(buffer.memory, DeviceMemory)
    return buffer.memory.tensor


def _parts(octets: torch.Tensor, shapes: Sequence[tuple[torch.dtype, int]]) -> list[tuple[torch.dtype, torch.Tensor]]:
    """The bytes of each (dtype, length) of a buffer."""
    return [(dtype, octets[low:high]) for _, dtype, low, high in _within(shapes, 0, octets.numel())]


def _within(
    shapes: Sequence[tuple[torch.dtype, int]], begin: int, size: int
) -> list[tuple[int, torch.dtype, int, int]]:
    """(index, dtype, low, high) of the flat tensors that lie in ``size`` bytes from `begin`; bytes count from there."""
    found = []
    start = 0
    for index, (dtype, length) in enumerate(shapes):
        low, high = max(start, begin), min(start + length * dtype.itemsize, begin + size)
        if low < high or (begin == 0 and length == 0):
            found.append((index, dtype, low - begin, high - begin))
        start += aligned(length * dtype.itemsize)
    return found
