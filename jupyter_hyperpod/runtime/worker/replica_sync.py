"""Synchronises the ranks of a replica so that they act as one member and always hold the same step.

Inside a replica ranks wait for each other in collectives that cannot be interrupted, so no rank may turn to a new
generation alone. The leader passes the coordinator's calls on between its own orders, in one stream. It orders a
micro-batch only when every rank is ready, and a change of the state (a reduced gradient, the state of a peer) is
applied only when every rank has its part. So a replica is never between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ...policy.growth import BatchTerms
from ...policy.recovery import MemberState
from ..protocol import facts, replica
from ..protocol.codec import Message, Process
from .elastic_group import ElasticGroup
from .local_group import LocalGroup
from .main import Worker
from .replica import refuse_stragglers
from .replica_state import merged

M = TypeVar("M", bound=Message)


class Leader(ElasticGroup):
    """Shard 0: talks to the coordinator for the replica."""

    def next_leaf(self, leaf: int) -> None:
        """Let all ranks compute `leaf`."""
        self.poll()
        self._place.send(replica.ComputeMicroBatch(self.generation, leaf))

    def gather(self, value: Any) -> list[Any]:
        """Collect the values of all ranks and send them to all."""
        tag = self._next_tag()
        given = self._collect(replica.ValueGiven, lambda said: (said.generation, said.count) == tag)
        values = (value, *(said.value for said in given))
        self._place.send(replica.ValuesGathered(*tag, values))
        return list(values)

    def send(self, message: Message) -> None:
        """Send for all ranks; their stripes for newcomers are combined, by shard."""
        if isinstance(message, facts.StateOffered):
            generation = message.generation
            every = [message, *self._collect(facts.StateOffered, lambda said: said.generation == generation)]
            tokens = tuple(token for said in every for token in said.token)
            message = replace(message, token=tokens, skeleton=tuple(text for said in every for text in said.skeleton))
        super().send(message)

    def _receive(self, timeout_s: float | None) -> Message | None:
        order = super()._receive(timeout_s)
        if order is not None and Process.FOLLOWER in order.receivers:
            self._place.send(order)
        return order

    def _report(self, held: MemberState) -> None:
        parts = self._collect(facts.StateReported, lambda said: said.generation == self.generation)
        super()._report(merged([held, *(said.state for said in parts)]))

    def _collect(self, kind: type[M], wanted: Callable[[M], bool]) -> list[M]:
        """One message of a kind from every other rank; those of older generations are forgotten."""
        found: dict[int, M] = {}
        while True:
            self.poll()
            for shard, said in enumerate(self._place.receive(), start=1):
                if shard not in found and (message := self._taken(said, shard, kind, wanted)):
                    found[shard] = message
            if len(found) == self.replica - 1:
                return [found[shard] for shard in sorted(found)]
            self._place.wait(self._worker.channel)

    def _taken(self, said: deque[Message], shard: int, kind: type[M], wanted: Callable[[M], bool]) -> M | None:
        """The first message that is wanted, taken out; those of other generations are dropped."""
        messages = list(said)
        said.clear()
        found = None
        for message in messages:
            refuse_stragglers(message, shard)
            if found is None and isinstance(message, kind) and wanted(message):
                found = message
            elif getattr(message, "generation", None) == self.generation:
                said.append(message)
        return found


class Follower(ElasticGroup):
    """Any other shard: obeys its leader."""

    def next_leaf(self, leaf: int) -> None:
        """Wait until all ranks compute `leaf`."""
        order = self._await(replica.ComputeMicroBatch)
        assert order.leaf == leaf, (order, leaf)

    def gather(self, value: Any) -> list[Any]:
        """Send to the leader and wait for the values of all."""
        tag = self._next_tag()
        self._place.send(replica.ValueGiven(*tag, value))
        whole = self._await(replica.ValuesGathered)
        assert (whole.generation, whole.count) == tag, (whole, tag)
        return list(whole.values)

    def send(self, message: Message) -> None:
        """Send only errors, which this rank alone may know; the leader sends everything else."""
        if isinstance(message, facts.PeerSuspected | facts.CorruptionFound):
            super().send(message)
        elif isinstance(message, facts.StateOffered):
            self._place.send(message)

    def journal(self, kind: str, data: dict[str, Any]) -> None:
        """The leader writes."""

    def leave_if_asked(self, step: int) -> None:
        """Nothing: the leader decides, and its followers leave with it."""

    def once(self, name: str) -> bool:
        """False: only the leader is the first."""
        return False

    def _report(self, held: MemberState) -> None:
        self._place.send(facts.StateReported(self.generation, held))


Group = ElasticGroup | LocalGroup


def group_of(worker: Worker | None, micro_batches: int, terms: BatchTerms | None = None) -> Group:
    """The group in which a session of this worker trains; outside a job, that of one member."""
    if worker is None:
        return LocalGroup(micro_batches, terms)
    if worker.place.size == 1:
        return ElasticGroup(worker)
    return Leader(worker) if worker.place.shard == 0 else Follower(worker)
