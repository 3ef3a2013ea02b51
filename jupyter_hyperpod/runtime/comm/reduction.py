"""Sums gradients of micro-batches in one fixed binary tree, independent of the members that computed them.

Each member keeps its finished tree nodes (`FinishedNodes`). To reduce, every member gives each owner that owner's
slice of its nodes; the owner adds them in the order of the tree and returns the sum. Members on one host read
each other's memory in place, others get the bytes. The nodes stay unchanged until the step is committed, so after a
fault only the lost micro-batches are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from ...policy.batching import Node, root_of, slices, split
from .mesh import Exchange, PeerLost, Transfer
from .shared_memory import TOKEN_BYTES, Attachments, Segment, Token, aligned, carve

ALIGN = 16
BLOCK = 1 << 18  # elements that are added and divided while they are in the cache


class Memory(Protocol):
    """Memory for one gradient of all parameters, of a kind that the members can exchange."""

    def carve(self, shapes: Sequence[tuple[torch.dtype, int]]) -> list[torch.Tensor]:
        """One 1-D tensor for each (dtype, length), laid end to end, aligned."""


RESULTS = 2  # buffers for results: the last one, which peers may still read, and the one that is written
STOP = -1.0  # among the weights of a member
_NOT_FINITE, _LAST = 1, 2


def weighed(weights: Iterable[float]) -> tuple[float, bool]:
    """The sum of the weights of all members, and whether one of them wants this step to be the last one."""
    numbers = list(weights)
    return math.fsum(number for number in numbers if number > 0), any(number < 0 for number in numbers)


def flags_of(sound: bool, stops: bool) -> int:
    """``meta[-1]`` of a result."""
    return (0 if sound else _NOT_FINITE) | (_LAST if stops else 0)


def read_flags(number: float) -> tuple[bool, bool]:
    """Inverse of `flags_of`."""
    return not int(number) & _NOT_FINITE, bool(int(number) & _LAST)


class Buffer:
    """One gradient of all parameters: a flat tensor per dtype, and what else is added in the tree.

    ``words`` (int64) holds what travels to the bit. ``meta`` (float64, 2 + parameters + numbers): ``meta[0]`` is the
    loss; ``meta[1 + i]`` counts the micro-batches in which parameter i had a gradient; then follow other numbers.
    ``meta[-1]`` of a result says whether its gradient is finite and whether it is the last one: see `flags_of`.
    """

    def __init__(self, layout: Layout) -> None:
        self.memory = layout.allocate(layout.octets)
        self.flats = self.memory.carve(layout.shapes)
        self.meta = self.flats[-1]
        self.words = self.flats[-2] if layout.words else None
        by_dtype = dict(zip(layout.lengths, self.flats, strict=False))
        self.gradients = [
            by_dtype[p.dtype][start : start + p.numel()].view_as(p)
            for p, start in zip(layout.parameters, layout.starts, strict=True)
        ]

    @property
    def version(self) -> tuple[int, ...]:
        """A number that changes whenever torch writes to the buffer, even through a view."""
        return tuple(flat._version for flat in self.flats)

    def add_(self, other: Buffer) -> Buffer:
        """Add elementwise in place."""
        for mine, theirs in zip(self.flats, other.flats, strict=True):
            mine.add_(theirs)
        return self


class Layout:
    """The place of each parameter's gradient in the flat tensors; ``allocate(octets)`` gives a buffer's memory."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        numbers: int = 0,
        words: int = 0,
        allocate: Callable[[int], Memory] = Segment,
    ) -> None:
        self.allocate = allocate
        self.parameters = list(parameters)
        self.numbers = numbers
        self.words = words
        self.lengths: dict[torch.dtype, int] = {}
        self.starts: list[int] = []
        for parameter in self.parameters:
            start = self.lengths.get(parameter.dtype, 0)
            self.starts.append(start)
            self.lengths[parameter.dtype] = start + -(-parameter.numel() // ALIGN) * ALIGN

    @property
    def shapes(self) -> list[tuple[torch.dtype, int]]:
        """(dtype, length) of the flat tensors of a buffer: gradients, `words` if there are any, and `meta` last."""
        words = [(torch.int64, self.words)] if self.words else []
        return [*self.lengths.items(), *words, (torch.float64, 2 + len(self.parameters) + self.numbers)]

    @property
    def octets(self) -> int:
        """Bytes of a buffer."""
        return sum(aligned(length * dtype.itemsize) for dtype, length in self.shapes)


class FinishedNodes:
    """This member's finished tree nodes of the present step. Siblings are summed as soon as both are finished."""

    def __init__(self, layout: Layout, micro_batches: int, free: list[Buffer] | None = None) -> None:
        """``free``: buffers that others use as well; they get back there by `clear`."""
        self.layout = layout
        self.nodes: dict[Node, Buffer] = {}
        self._free: list[Buffer] = [] if free is None else free
        self.grow(micro_batches)

    def apart(self) -> FinishedNodes:
        """Nodes apart from these, in buffers that are free here."""
        return FinishedNodes(self.layout, self.micro_batches, self._free)

    def grow(self, micro_batches: int) -> None:
        """The steps from now on have so many micro-batches; what is finished belongs to another tree."""
        self.clear()
        self.micro_batches = micro_batches
        self._parents: dict[Node, tuple[Node, Node, Node]] = {}
        self._add_descendants((0, micro_batches))

    def open(self, leaf: int) -> tuple[Buffer, bool]:
        """The buffer for the gradient of micro-batch `leaf`: overwrite it, or (True) add to the left sibling in it."""
        family = self._parents.get((leaf, leaf + 1))
        if family and family[2] == (leaf, leaf + 1) and family[1] in self.nodes:
            return self.nodes[family[1]], True
        return (self._free.pop() if self._free else Buffer(self.layout)), False

    def close(self, leaf: int, buffer: Buffer) -> None:
        """Record the finished gradient of micro-batch `leaf` in the buffer from `open`."""
        node = (leaf, leaf + 1)
        family = self._parents.get(node)
        if family and self.nodes.get(family[1]) is buffer:
            node = family[0]
            del self.nodes[family[1]]
        self.nodes[node] = buffer
        while (family := self._parents.get(node)) and family[1] in self.nodes and family[2] in self.nodes:
            parent, left, right = family
            self.nodes[parent] = self.nodes.pop(left).add_(self.nodes[right])
            self._free.append(self.nodes.pop(right))
            node = parent

    def prepare(self) -> None:
        """Have a buffer before the first micro-batch is computed."""
        if not self._free:
            self._free.append(Buffer(self.layout))

    def discard(self, buffer: Buffer) -> None:
        """Drop the buffer from `open`; the whole node to which it belonged has to be computed again."""
        self.nodes = {node: kept for node, kept in self.nodes.items() if kept is not buffer}
        self._free.append(buffer)

    def holds(self, leaf: int) -> bool:
        """True if micro-batch `leaf` is in a finished node."""
        return any(low <= leaf < high for low, high in self.nodes)

    def clear(self) -> None:
        """Reuse all buffers, because the step is committed."""
        self._free.extend(self.nodes.values())
        self.nodes.clear()

    def release(self) -> None:
        """Give the memory back: the session is over."""
        self.nodes.clear()
        self._free.clear()

    def _add_descendants(self, node: Node) -> None:
        if node[1] - node[0] > 1:
            left, right = split(node)
            for child in (left, right):
                self._parents[child] = (node, left, right)
                self._add_descendants(child)


class Reduction:
    """Combines the nodes of all members into one sum over all micro-batches.

    ``near``: the ranks on this host, whose memory is read in place; with the others bytes are exchanged.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._results = [Buffer(layout) for _ in range(RESULTS)]
        self._scratch: dict[int, torch.Tensor] = {}
        self.attachments = Attachments()

    def free_result(self, keep: Sequence[Buffer]) -> Buffer:
        """A result buffer outside of `keep`, whose buffers peers may still need."""
        free = [result for result in self._results if not any(result is kept for kept in keep)]
        chosen, *others = free or [Buffer(self._layout)]
        self._results = [*keep, chosen, *others[: max(0, RESULTS - 1 - len(keep))]]
        return chosen

    def release(self) -> None:
        """Give the memory back: the session is over."""
        self._results, self._scratch = [], {}
        self.attachments.forget_all_but(())

    def renew(self, keep: Sequence[Buffer]) -> None:
        """Use new memory for the next result, because an excluded member may still read the old memory."""
        self._results = [*keep, Buffer(self._layout)]

    def reduce(
        self, finished: FinishedNodes, holdings: Sequence[tuple[Node, ...]], rank: int, near: frozenset[int],
        keep: Sequence[Buffer], exchange: Exchange, weights: torch.Tensor, check_finite: bool = False,
    ) -> Buffer:  # fmt: skip
        """Return the gradient's sum over the tree divided by the weight, the same bits on every member.

        `words` and `meta` are sums. ``weights`` (float64) are those of this member's micro-batches, 0 for all others,
        and then `STOP` from a member that wants this step to be the last one; where all members' weights are 0, the sum
        is not divided. `keep`: results not to overwrite. With
        ``check_finite`` every owner also checks that its slices are finite.

        ``holdings[r]`` are rank r's nodes. If it is cancelled (`exchange` raised), no node has changed.
        """
        result = self.free_result(keep)
        sound = True
        parts, numbers = self._collect(finished, holdings, rank, near, exchange, weights)
        total, stops = weighed(numbers)
        scale, root = 1.0 / total if total else 1.0, root_of(holdings)
        for flat, nodes in zip(result.flats, parts, strict=True):
            low, high = slices(flat.numel(), len(holdings))[rank]
            for start in range(low, high, BLOCK):
                end = min(start + BLOCK, high)
                block = flat[start:end]
                tree_sum(root, {node: part[start - low : end - low] for node, part in nodes.items()}, block)
                if flat is not result.meta and flat is not result.words:
                    block.mul_(scale)
                    sound = sound and not (check_finite and not is_finite(block))
        sound = self._gather(result, rank, len(holdings), near, exchange, sound)
        result.meta[-1] = flags_of(sound, stops)
        return result

    def _collect(
        self,
        finished: FinishedNodes,
        holdings: Sequence[tuple[Node, ...]],
        rank: int,
        near: frozenset[int],
        exchange: Exchange,
        weights: torch.Tensor,
    ) -> tuple[list[dict[Node, torch.Tensor]], list[float]]:
        """This rank's slice of every node of every member, by flat tensor, and the weights of all members."""
        neighbours, distant = _peers(rank, len(holdings), near)
        mine = [(node, finished.nodes[node]) for node in holdings[rank]]
        theirs = [(peer, node) for peer in neighbours for node in holdings[peer]]
        far = [(peer, node) for peer in distant for node in holdings[peer]]
        tokens = [(peer, memoryview(bytearray(TOKEN_BYTES))) for peer, _ in theirs]
        others = {peer: torch.empty_like(weights) for peer in (*neighbours, *distant)}
        sends: list[Transfer] = [(peer, as_bytes(weights)) for peer in others]
        sends += [(peer, memoryview(token_of(buffer).pack())) for peer in neighbours for _, buffer in mine]
        receives: list[Transfer] = [(peer, as_bytes(shown)) for peer, shown in others.items()]
        receives += tokens
        parts: list[dict[Node, torch.Tensor]] = []
        for index, (dtype, length) in enumerate(self._layout.shapes):
            bounds = slices(length, len(holdings))
            low, high = bounds[rank]
            found = {node: buffer.flats[index][low:high] for node, buffer in mine}
            scratch = self._scratch_for(dtype, index, len(far) * (high - low))
            for place, (peer, node) in enumerate(far):
                found[node] = scratch[place * (high - low) : (place + 1) * (high - low)]
                receives.append((peer, as_bytes(found[node])))
            for peer in distant:
                start, end = bounds[peer]
                sends += [(peer, as_bytes(buffer.flats[index][start:end])) for _, buffer in mine]
            parts.append(found)
        exchange(sends, receives)
        for (peer, node), (_, token) in zip(theirs, tokens, strict=True):
            for nodes, flat in zip(parts, self.attach(peer, token), strict=True):
                low, high = slices(flat.numel(), len(holdings))[rank]
                nodes[node] = flat[low:high]
        return parts, [number for shown in (weights, *others.values()) for number in shown.tolist()]

    def _gather(
        self, result: Buffer, rank: int, world_size: int, near: frozenset[int], exchange: Exchange, sound: bool
    ) -> bool:
        """Collect the slices of all owners; True where every owner found its own finite."""
        neighbours, distant = _peers(rank, world_size, near)
        tokens = {peer: memoryview(bytearray(TOKEN_BYTES)) for peer in neighbours}
        sends: list[Transfer] = [(peer, memoryview(token_of(result).pack())) for peer in tokens]
        receives: list[Transfer] = list(tokens.items())
        flags = {peer: memoryview(bytearray(1)) for peer in (*neighbours, *distant)}
        sends += [(peer, memoryview(bytes([sound]))) for peer in flags]
        receives += flags.items()
        for flat in result.flats:
            bounds = slices(flat.numel(), world_size)
            for peer in distant:
                sends.append((peer, as_bytes(flat[slice(*bounds[rank])])))
                receives.append((peer, as_bytes(flat[slice(*bounds[peer])])))
        exchange(sends, receives)
        for peer, token in tokens.items():
            for mine, theirs in zip(result.flats, self.attach(peer, token), strict=True):
                part = slice(*slices(mine.numel(), world_size)[peer])
                mine[part].copy_(theirs[part])
        # no rank may overwrite a result that a neighbour still reads
        exchange([(peer, memoryview(b"r")) for peer in tokens], [(peer, memoryview(bytearray(1))) for peer in tokens])
        return sound and all(flag[0] for flag in flags.values())

    def attach(self, peer: int, token: memoryview) -> list[torch.Tensor]:
        """The flat tensors of a neighbour's buffer, in place. Raises PeerLost where the neighbour has gone."""
        try:
            return carve(self.attachments.memory(Token.unpack(bytes(token))), self._layout.shapes)
        except OSError as error:
            raise PeerLost(peer) from error

    def _scratch_for(self, dtype: torch.dtype, index: int, length: int) -> torch.Tensor:
        """Scratch memory of one flat tensor: touched once, then reused."""
        scratch = self._scratch.get(index)
        if scratch is None or scratch.numel() < length:
            scratch = self._scratch[index] = torch.empty(length, dtype=dtype)
        return scratch


def _peers(rank: int, world_size: int, near: frozenset[int]) -> tuple[list[int], list[int]]:
    """The other ranks: those on this host, and those on other hosts."""
    others = [peer for peer in range(world_size) if peer != rank]
    return [peer for peer in others if peer in near], [peer for peer in others if peer not in near]


def token_of(buffer: Buffer) -> Token:
    """The token of a buffer in shared memory."""
    assert isinstance(buffer.memory, Segment)
    return buffer.memory.token


def tree_sum(node: Node, nodes: dict[Node, torch.Tensor], out: torch.Tensor) -> None:
    """Write the sum of `node` into `out`; given tensors are left alone."""
    if node in nodes:
        out.copy_(nodes[node])
        return
    left, right = split(node)
    if left in nodes and right in nodes:
        torch.add(nodes[left], nodes[right], out=out)
        return
    tree_sum(left, nodes, out)
    if right in nodes:
        out.add_(nodes[right])
    else:
        other = torch.empty_like(out)
        tree_sum(right, nodes, other)
        out.add_(other)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is finite. One pass first: the sum of others is never finite, but it may also overflow."""
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
