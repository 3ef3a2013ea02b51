"""How the ranks of a replica act as one member: what one of them does, all do, and what they hold is of one step.

Inside a replica ranks wait for each other in collectives that nothing can interrupt, so none may turn to a new
generation alone. The leader passes the coordinator's calls on between its own orders, in one stream. An order to
compute a micro-batch is only given when every rank is free to obey, and what changes the state (a reduced gradient,
the state of a peer) is only applied when every rank has its part of it. So a replica is never between two steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Any

from ...policy.recovery import MemberState
from ...policy.verdict import Statement
from ..connection import Message
from .elastic_group import ElasticGroup
from .main import Worker
from .replica import refuse_stragglers
from .replica_state import merged

RELAYED = ("form", "go", "close", "hold", "offer", "snapshot", "leave", "back")


class Leader(ElasticGroup):
    """Shard 0: hears the coordinator and speaks for the replica."""

    def next_leaf(self, leaf: int) -> None:
        """Let all ranks compute `leaf`."""
        self.poll()
        self._place.order({"type": "leaf", "generation": self.generation, "leaf": leaf})

    def gather(self, value: Any) -> list[Any]:
        """Collect what all ranks say and tell it to all."""
        tag = self._next_tag()
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

    def _report(self, held: MemberState) -> None:
        tag = {"type": "report", "generation": self.generation}
        super()._report(merged([held, *map(_state, self._collect(tag))]))

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


class Follower(ElasticGroup):
    """Any other shard: obeys its leader."""

    def next_leaf(self, leaf: int) -> None:
        """Wait until all ranks compute `leaf`."""
        order = self._await("leaf")
        assert order["leaf"] == leaf, (order, leaf)

    def gather(self, value: Any) -> list[Any]:
        """Tell the leader and wait for what all say."""
        tag = self._next_tag()
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

    def _report(self, held: MemberState) -> None:
        self._place.order({"type": "report", "generation": self.generation} | asdict(held))


def group_of(worker: Worker) -> ElasticGroup:
    """What a session of this worker trains in."""
    if worker.place.size == 1:
        return ElasticGroup(worker)
    return Leader(worker) if worker.place.shard == 0 else Follower(worker)


def _state(report: Message) -> MemberState:
    nodes = tuple((low, high) for low, high in report["nodes"])
    statement = Statement(**report["statement"]) if report["statement"] else None
    return MemberState(report["step"], nodes, report["history"], report["digest"], statement=statement)
