"""What the ranks of one replica say to each other, besides the orders and facts that pass between them."""

from __future__ import annotations

from typing import Any

from .codec import Message, Process, message

_, _, WORKER, FOLLOWER = Process


@message("listening", FOLLOWER, WORKER)
class FollowerReady(Message):
    """A follower can be reached at ``port``."""

    port: int


@message("leaf", WORKER, FOLLOWER)
class ComputeMicroBatch(Message):
    """All ranks of the replica compute micro-batch ``leaf``."""

    generation: int
    leaf: int


@message("part", FOLLOWER, WORKER)
class ValueGiven(Message):
    """One rank's value in the ``count``-th exchange among a replica's ranks, in one generation."""

    generation: int
    count: int
    value: Any


@message("whole", WORKER, FOLLOWER)
class ValuesGathered(Message):
    """The values of all ranks in that exchange, by shard."""

    generation: int
    count: int
    values: tuple[Any, ...]


@message("ended", (WORKER, FOLLOWER), (WORKER, FOLLOWER))
class RankEnded(Message):
    """The cell of this rank has ended."""
