"""The base of all groups: the ranks of one replica act as one member. Also `Regroup`, which calls a new generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...policy.guard import StepReading
from ...policy.recovery import Saved
from ..protocol import orders
from ..protocol.codec import Message
from .replica_state import folded, mean_reading


class Regroup(Exception):
    """A new generation is being formed; ``order`` names its members."""

    def __init__(self, order: orders.FormGeneration) -> None:
        super().__init__(f"generation {order.generation}")
        self.order = order


class GroupBase:
    """A member of one rank, or one rank of a replica: by default it computes, holds and reports all of the member."""

    collectives = "auto"  # one of core.spec.COLLECTIVES
    host = ""  # this member's address
    secret = b""  # of the job
    shard = 0
    replica = 1  # ranks
    aside = False  # the cell is in the middle of what follows a step: see `stand_aside`
    warm = False  # this process has computed a micro-batch in this session
    place: tuple[int, ...] = ()  # what the seed of a micro-batch depends on besides seed, step and index

    def __init__(self) -> None:
        self.checkpoints: Callable[[], Sequence[Saved]] = list  # those that a member without state could load
        self.on_interval: Callable[[orders.CheckpointInterval], None] = ignore

    def begin_step(self, step: int) -> None:
        """This step begins, from 1: what is printed from now on belongs to it."""

    def stand_aside(self, aside: bool, answers_calls: bool = False) -> None:
        """The cell exchanges in the middle of what follows a step, where nobody can join: let them wait."""
        self.aside = aside

    def renew_keys(self) -> None:
        """Between two exchanges, at the same place of a step on all members: renew keys that have been used for much.

        Raises Regroup.
        """

    def part(self, indices: list[int]) -> list[int]:
        """This rank's equal share of a micro-batch's samples: FSDP averages the gradients of a replica's ranks."""
        size = len(indices) // self.replica
        return indices[self.shard * size : (self.shard + 1) * size]

    def gather(self, value: Any) -> list[Any]:
        """The values (JSON) of every rank of this replica, by shard: from here on they act alike. Raises Regroup."""
        return [value]

    def combined(self, numbers: Sequence[int]) -> list[int]:
        """Checksums of 64 bits, each made of those of all ranks of this replica, in their order. Raises Regroup."""
        if self.replica == 1:
            return list(numbers)
        return [folded(column) for column in zip(*self.gather(list(numbers)), strict=True)]

    def agree(self, reading: StepReading) -> StepReading:
        """The numbers of a reduced step over all ranks of this replica, which apply it all or none. Raises Regroup."""
        return reading if self.replica == 1 else mean_reading(reading, self.gather)


def ignore(order: Message) -> None:
    """No session is open yet."""
