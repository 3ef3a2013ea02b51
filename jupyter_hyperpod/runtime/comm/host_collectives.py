"""Gradients through host memory: in place among members of one host, else over the mesh."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...policy.batching import Node
from .collectives import Links
from .kinds import Kind
from .mesh import PeerLost
from .reduction import Buffer, FinishedNodes, Layout, Reduction, as_bytes, token_of
from .shared_memory import TOKEN_BYTES, Token, is_held


class HostCollectives:
    """The members of ``links`` exchange gradients that lie as in ``layout``."""

    pair: Kind | None = None

    def __init__(self, links: Links, layout: Layout) -> None:
        self.layout = layout
        self._links = links
        self._reduction = Reduction(self.layout)
        self._readers: frozenset[Token] = frozenset()  # neighbours that were shown results in the last generation
        self._mappings_outdated = False

    def begin(self, keep: Sequence[Buffer]) -> None:
        """Give up results that an excluded but living neighbour may still read."""
        if any(is_held(token) for token in self._readers - self._links.neighbours):
            self._reduction.renew(keep)
        self._readers = self._links.neighbours
        self._mappings_outdated = True

    def reduce(
        self,
        finished: FinishedNodes,
        holdings: Sequence[tuple[Node, ...]],
        keep: Sequence[Buffer],
        weights: torch.Tensor,
        check_finite: bool,
    ) -> Buffer:
        """See `Collectives.reduce`."""
        links = self._links
        return self._reduction.reduce(
            finished, holdings, links.rank, links.near, keep, links.exchange, weights, check_finite
        )

    def send(self, result: Buffer, rank: int) -> None:
        """Send a result to a member that missed it."""
        if rank in self._links.near:
            views = [memoryview(token_of(result).pack())]
        else:
            views = [as_bytes(flat) for flat in result.flats]
        self._links.exchange([(rank, view) for view in views], [])

    def receive(self, donor: int, keep: Sequence[Buffer]) -> Buffer:
        """Receive a result that `donor` sends, in a buffer outside of `keep`. Raises Regroup."""
        result = self._reduction.free_result(keep)
        if donor not in self._links.near:
            self._links.exchange([], [(donor, as_bytes(flat)) for flat in result.flats])
            return result
        token = memoryview(bytearray(TOKEN_BYTES))
        self._links.exchange([], [(donor, token)])
        try:
            shown = self._reduction.attach(donor, token)
        except PeerLost as lost:
            self._links.lost(lost)
        for mine, theirs in zip(result.flats, shown, strict=True):
            mine.copy_(theirs)
        return result

    def step_done(self) -> None:
        """Forget the memory of former members, while no member waits."""
        if self._mappings_outdated:
            self._reduction.attachments.forget_all_but({token.pid for token in self._links.neighbours})
            self._mappings_outdated = False

    def release(self) -> None:
        """Give everything back: the session is over."""
        self._reduction.release()
