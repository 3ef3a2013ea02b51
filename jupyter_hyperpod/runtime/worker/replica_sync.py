"""Synchronises the ranks of a replica so that they act as one member and always hold the same step.

Inside a replica ranks wait for each other in collectives that cannot be interrupted, so no rank may turn to a new
generation alone. The leader passes the coordinator's calls on between its own orders, in one stream. It orders a
micro-batch only when every rank is ready, and a change of the state (a reduced gradient, the state of a peer) is
applied only when every rank has its part. So a replica is never between two steps.
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
    """Shard 0: talks to the coordinator for the replica."""

    def next_leaf(self, leaf: int) -> None:
        """Let all ranks compute `leaf`."""
        self.poll()
        self._place.order({"type": "leaf", "generation": self.generation, "leaf": leaf})

    def gather(self, value: Any) -> list[Any]:
        """Collect the values of all ranks and send them to all."""
        tag = self._next_tag()
        values = [value, *(message["value"] for message in self._collect({"type": "part"} | tag))]
        self._place.order({"type": "whole", "values": values} | tag)
        return values

    def say(self, message: Message) -> None:
        """Send for all ranks; their stripes for newcomers are combined, by shard."""
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
        """Send to the leader and wait for the values of all."""
        tag = self._next_tag()
        self._place.order({"type": "part", "value": value} | tag)
        whole = self._await("whole")
        assert whole["count"] == tag["count"], (whole, tag)
        return list(whole["values"])

    def say(self, message: Message) -> None:
        """Send only errors, which this rank alone may know; the leader sends everything else."""
        if message["type"] in ("suspect", "accuse"):
            super().say(message)
        elif message["type"] == "offered":
            self._place.order(message)

    def journal(self, kind: str, data: Message) -> None:
        """The leader writes."""

    def leave_if_asked(self, step: int) -> None:
        """Nothing: the leader decides, and its followers leave with it."""

    def once(self, name: str) -> bool:
        """False: only the leader is the first."""
        return False

    def _report(self, held: MemberState) -> None:
        self._place.order({"type": "report", "generation": self.generation} | asdict(held))


def group_of(worker: Worker) -> ElasticGroup:
    """The group in which a session of this worker trains."""
    if worker.place.size == 1:
        return ElasticGroup(worker)
    return Leader(worker) if worker.place.shard == 0 else Follower(worker)


def _state(report: Message) -> MemberState:
    nodes = tuple((low, high) for low, high in report["nodes"])
    statement = Statement(**report["statement"]) if report["statement"] else None
    return MemberState(report["step"], nodes, report["history"], report["digest"], statement=statement)
