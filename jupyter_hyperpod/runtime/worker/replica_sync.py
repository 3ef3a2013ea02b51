"""How the ranks of a replica act as one member: what one of them does, all do, and what they hold is of one step.

Inside a replica ranks wait for each other in collectives that nothing can interrupt, so none may turn to a new
generation alone. The leader passes the coordinator's calls on between its own orders, in one stream. An order to
compute a micro-batch is only given when every rank is free to obey, and what changes the state (a reduced gradient,
the state of a peer) is only applied when every rank has its part of it. So a replica is never between two steps.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...policy.guard import Reading
from ..comm.mesh import Address
from ..connection import Message
from ..session.checksum import fold
from .elastic_group import Go, Group, Held, Regroup
from .main import Worker
from .replica import refuse_stragglers

RELAYED = ("form", "go", "close", "stop", "hold", "offer", "snapshot", "leave", "back")


class Rank(Group):
    """One rank of a replica of several. It exchanges with the ranks of the same shard, its lane."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._place = worker.place
        self.shard = self._place.shard
        self.replica = self._place.size
        self.place = (self.shard,)
        self._gathered = 0  # in this generation

    def part(self, indices: list[int]) -> list[int]:
        """An equal share of the micro-batch: FSDP averages the gradients of its ranks."""
        size = len(indices) // self.replica
        return indices[self.shard * size : (self.shard + 1) * size]

    def combined(self, numbers: Sequence[int]) -> list[int]:
        """One checksum of those of all ranks, in their order."""
        return [folded(column) for column in zip(*self.gather(list(numbers)), strict=True)]

    def agree(self, reading: Reading) -> Reading:
        """The means over the ranks, added up in their order."""
        parts = self.gather([reading.finite, reading.loss, *reading.losses])
        loss, *losses = (sum(numbers) / self.replica for numbers in zip(*(part[1:] for part in parts), strict=True))
        return Reading(reading.step, loss, all(part[0] for part in parts), tuple(losses))

    def finish(self, step: int, digest: str) -> None:
        """Wait for the end with one digest for the whole replica."""
        self.touch("closing", step)
        super().finish(step, combined(self.gather(digest)))

    def _form(self, message: Message, held: Held, micro_batches: int) -> Go:
        self._gathered = 0
        return super()._form(message, held, micro_batches)

    def _address(self, peer: Message) -> Address:
        return Address(peer["host"], peer["ports"][self.shard])

    def _obey(self, message: Message) -> None:
        refuse_stragglers(message, 0)
        if message["type"] == "snapshot":
            own = {"skeleton": message["skeleton"][self.shard], "tokens": [t[self.shard] for t in message["tokens"]]}
            message = message | own
        super()._obey(message)

    def _await(self, kind: str) -> Message:
        try:
            return super()._await(kind)
        except Regroup as call:
            if kind != "form":
                raise
            return call.message  # it came while this rank did something together with the others

    def _tag(self) -> dict[str, int]:
        self._gathered += 1
        return {"generation": self.generation, "count": self._gathered}


class Leader(Rank):
    """Shard 0: hears the coordinator and speaks for the replica."""

    def next_leaf(self, leaf: int) -> None:
        """Let all ranks compute `leaf`."""
        self.poll()
        self._place.order({"type": "leaf", "generation": self.generation, "leaf": leaf})

    def gather(self, value: Any) -> list[Any]:
        """Collect what all ranks say and tell it to all."""
        tag = self._tag()
        values = [value, *(message["value"] for message in self._collect({"type": "part"} | tag))]
        self._place.order({"type": "whole", "values": values} | tag)
        return values

    def say(self, message: Message) -> None:
        """Speak for all ranks; what each lays out for newcomers is told together, by shard."""
        if message["type"] == "offered":
            all_of_them = [message, *self._collect({"type": "offered", "generation": message["generation"]})]
            message = message | {key: [one[key] for one in all_of_them] for key in ("token", "skeleton")}
        super().say(message)

    def _receive(self, timeout_s: float | None) -> Message | None:
        message = super()._receive(timeout_s)
        if message is not None and message["type"] in RELAYED:
            self._place.order(message)
        return message

    def _report(self, held: Held) -> None:
        tag = {"type": "report", "generation": self.generation}
        parts = [Held(m["step"], _nodes(m), m["history"], m["digest"], m["statement"]) for m in self._collect(tag)]
        super()._report(merged([held, *parts]))

    def _collect(self, wanted: Message) -> list[Message]:
        """One message that holds `wanted` from every other rank; those of older generations are forgotten."""
        found: dict[int, Message] = {}
        while True:
            self.poll()
            for shard, said in enumerate(self._place.hear(), start=1):
                if shard not in found and (message := self._taken(said, shard, wanted)):
                    found[shard] = message
            if len(found) == self.replica - 1:
                return [found[shard] for shard in sorted(found)]
            self._place.wait(self._worker.channel)

    def _taken(self, said: deque[Message], shard: int, wanted: Message) -> Message | None:
        """The first message that holds `wanted`, taken out; those of other generations are dropped."""
        messages = list(said)
        said.clear()
        found = None
        for message in messages:
            refuse_stragglers(message, shard)
            if found is None and wanted.items() <= message.items():
                found = message
            elif message["generation"] == self.generation:
                said.append(message)
        return found


class Follower(Rank):
    """Any other shard: obeys its leader."""

    def next_leaf(self, leaf: int) -> None:
        """Wait until all ranks compute `leaf`."""
        order = self._await("leaf")
        assert order["leaf"] == leaf, (order, leaf)

    def gather(self, value: Any) -> list[Any]:
        """Tell the leader and wait for what all say."""
        tag = self._tag()
        self._place.order({"type": "part", "value": value} | tag)
        whole = self._await("whole")
        assert whole["count"] == tag["count"], (whole, tag)
        return list(whole["values"])

    def say(self, message: Message) -> None:
        """The leader speaks for all; only what is amiss may be known to this rank alone."""
        if message["type"] in ("suspect", "accuse"):
            super().say(message)
        elif message["type"] == "offered":
            self._place.order(message)

    def journal(self, kind: str, data: Message) -> None:
        """The leader writes."""

    def leave_if_asked(self, step: int) -> None:
        """The leader decides; who waits for its orders leaves with it."""

    def once(self, name: str) -> bool:
        """What happens once happens to the leader."""
        return False

    def _report(self, held: Held) -> None:
        self._place.order({"type": "report", "generation": self.generation} | asdict(held))


def group_of(worker: Worker) -> Group:
    """What a session of this worker trains in."""
    if worker.place.size == 1:
        return Group(worker)
    return Leader(worker) if worker.place.shard == 0 else Follower(worker)


def merged(parts: list[Held]) -> Held:
    """What a replica holds: what all its ranks hold."""
    steps = {part.step for part in parts}
    assert len(steps) == 1, f"ranks of one replica are at different steps: {steps}"
    nodes = tuple(node for node in parts[0].nodes if all(node in part.nodes for part in parts))
    digest = combined([part.digest for part in parts]) if parts[0].digest else ""
    statement = stated([part.statement for part in parts])
    return Held(parts[0].step, nodes, min(part.history for part in parts), digest, statement)


def stated(statements: Sequence[Message]) -> Message:
    """What a replica tells of its checksums: nothing unless all its ranks have looked at the same step."""
    if not all(statements) or len({statement["step"] for statement in statements}) > 1:
        return {}
    both = ("sealed", "state")
    return statements[0] | {key: f"{folded([int(s[key], 16) for s in statements]):016x}" for key in both}


def folded(numbers: Sequence[int]) -> int:
    """One number of 64 bits for several."""
    return fold(np.array(numbers, np.uint64).view(np.int64))


def combined(digests: list[str]) -> str:
    """One SHA-256 (hex) of those of all ranks, in their order."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _nodes(message: Message) -> tuple[tuple[int, int], ...]:
    return tuple((low, high) for low, high in message["nodes"])
