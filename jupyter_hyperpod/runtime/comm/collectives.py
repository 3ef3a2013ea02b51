"""The seam between a session and the ways in which members exchange gradients.

A session works with one `Collectives` for all of its generations and knows none of the implementations:
`HostCollectives` (the mesh and shared memory) and `DeviceCollectives` (a process group of torch.distributed).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

import torch

from ...policy.batching import Node
from .kinds import Kind
from .mesh import PeerLost, Transfer
from .reduction import Buffer, FinishedNodes, Layout
from .shared_memory import Token


class Links(Protocol):
    """What a group of members offers to what exchanges tensors: bytes among them, until the generation ends."""

    near: frozenset[int]
    neighbours: frozenset[Token]
    collectives: str  # as a person asked: one of core.spec.COLLECTIVES
    host: str  # this member's address, "" where it has none
    generation: int
    rank: int
    world_size: int

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Exchange buffers with peers. Raises Regroup when the generation ends meanwhile."""

    def wait_for(self, descriptor: int, timeout_s: float | None = None) -> bool:
        """Wait until `descriptor` can be read; False after the timeout. Raises Regroup, also where a peer is lost."""

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """Report a lost peer and wait for the generation without it. Raises Regroup."""

    def warn(self, text: str) -> None:
        """Journal a warning."""


class Collectives(Protocol):
    """How the members of a session exchange gradients.

    ``layout``: of the buffers, in memory that this implementation can exchange. Where a call raises, no finished node
    has changed, and a result that was begun is never used again.
    """

    layout: Layout
    pair: Kind | None  # of the process groups by which one member sends another its state; None: the host's way

    def begin(self, keep: Sequence[Buffer]) -> None:
        """A generation has formed; every member calls this first. ``keep``: results that may be sent to others."""

    def reduce(
        self,
        finished: FinishedNodes,
        holdings: Sequence[tuple[Node, ...]],
        keep: Sequence[Buffer],
        weights: torch.Tensor,
        check_finite: bool,
    ) -> Buffer:
        """Return the sum over the tree divided by the weight, the same bits on every member: see `Reduction.reduce`.

        Raises Regroup when the generation ends meanwhile, and PeerLost.
        """

    def send(self, result: Buffer, rank: int) -> None:
        """Send a result to a member that missed it."""

    def receive(self, donor: int, keep: Sequence[Buffer]) -> Buffer:
        """Receive a result that `donor` sends, in a buffer outside of `keep`. Raises Regroup."""

    def step_done(self) -> None:
        """All members have taken part in a step: free what only an earlier generation needed."""

    def release(self) -> None:
        """Give everything back: the session is over."""
