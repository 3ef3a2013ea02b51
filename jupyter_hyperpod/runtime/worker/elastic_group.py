"""ElasticGroup: a worker's membership in its job. The process stays while generations change.

`ElasticGroup` talks to the coordinator and holds the mesh. Any wait inside it may raise `Regroup`; the session then
calls `form`, reports what it holds and gets the plan by which it continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import NoReturn

from ...policy.batching import holdings_of
from ...policy.membership import COMPUTE, WARM_UP
from ...policy.recovery import MemberState, RecoveryPlan, Saved
from .. import faults
from ..comm.mesh import Address, Door, Mesh, PeerLost, Transfer, all_gather
from ..comm.shared_memory import PROBE_BYTES, TOKEN_BYTES, Segment, Token, can_read
from ..connection import Message
from .group_base import SOCKETS_ONLY_VARIABLE, GroupBase, Regroup
from .main import Worker, switched_on
from .replica import refuse_stragglers
from .replica_state import combined


class ElasticGroup(GroupBase):
    """This worker's place among the members of its job.

    A rank of a replica of several (see `replica_sync`) exchanges with the ranks of the same shard, its lane.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._place = worker.place
        self.shard, self.replica = self._place.shard, self._place.size
        self.place = (self.shard,) if self.replica > 1 else ()
        self._gathered = 0  # number of gathers of this replica's ranks in this generation
        self._door = Door(worker.listener, worker.context.job.secret())
        self._mesh: Mesh | None = None
        self.generation = 0
        self.session = 0  # number of the session in its cell, from 1
        self.rank = worker.rank if worker.rank is not None else -1
        self.world_size = worker.world_size
        self.near: frozenset[int] = frozenset()
        self.neighbours: frozenset[Token] = frozenset()  # a segment per rank on this host, while it lives
        self.serve: Callable[[Message], None] = _ignore  # offers a stripe of the state to newcomers
        self.take: Callable[[Message], None] = _ignore  # loads a snapshot on a newcomer
        self._step = 0
        self._hold_step: int | None = None
        self._leave_after: int | None = None
        self.checkpoints: Callable[[], Sequence[Saved]] = list  # those that a member without state could load
        self.on_interval: Callable[[Message], None] = _ignore
        self._probe = Segment(PROBE_BYTES)
        self._probe.memory[:] = os.urandom(PROBE_BYTES)

    def join(self, opened: Message, held: Callable[[], MemberState], micro_batches: int) -> RecoveryPlan:
        """Report the opened session to the coordinator and wait for its generation."""
        self._worker.sessions += 1
        self.session = self._worker.sessions
        held()  # computed now, because a digest takes long and others would wait for it later
        self.say({"type": "session", "index": self._worker.sessions} | opened)
        self.touch("user", 0)
        try:
            self._await_call()
        except Regroup as call:
            return self.form(call.message, held(), micro_batches)

    def form(self, message: Message, held: MemberState, micro_batches: int) -> RecoveryPlan:
        """Form the generation of `message`, or a newer one that replaces it meanwhile."""
        while True:
            try:
                return self._form(message, held, micro_batches)
            except Regroup as newer:
                message = newer.message

    def poll(self) -> None:
        """Check for a call of the coordinator, without waiting. Raises Regroup."""
        while (message := self._receive(0.0)) is not None:
            self._obey(message)

    def leave_if_asked(self, step: int) -> None:
        """At a step boundary: if this member has to leave, report that it has left, and wait to be ended.

        Raises Regroup where the coordinator changes its mind.
        """
        self.poll()
        if self._leave_after is not None and step >= self._leave_after:
            self.touch("closing", step)
            self.say({"type": "left", "generation": self.generation, "step": step})
            self._await_call()

    def next_leaf(self, leaf: int) -> None:
        """Micro-batch `leaf` is about to be computed without interruption. Raises Regroup."""
        self.poll()

    def touch(self, phase: str, step: int) -> None:
        """Show the agent that something moved."""
        self._step = step
        first = phase == COMPUTE and not self.warm
        self._worker.progress.touch(WARM_UP if first else phase, step)

    def show_pace(self, step: int, seconds: float) -> None:
        """Show the agent how long a micro-batch took."""
        self._worker.progress.show_pace(step, seconds)

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Exchange buffers with peers. Raises Regroup when the generation ends meanwhile."""
        assert self._mesh is not None
        self.poll()
        try:
            self._mesh.exchange(sends, receives, self._worker.channel.fileno(), self.poll)
        except PeerLost as lost:
            self.lost(lost)

    @property
    def newcomer(self) -> bool:
        """Whether this member begins outside the training generation."""
        return self._worker.rank is None

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """Report a lost peer and wait for the generation without it. Raises Regroup."""
        self._suspect(lost.rank)
        try:
            self._await_call()
        except Regroup as call:
            raise call from cause or lost

    def meet_if_told(self) -> None:
        """At the end of a step: raises Regroup where newcomers join now, when they have been announced."""
        if self._hold_step is not None and self._step >= self._hold_step:
            self._await_call()

    def accuse(self, text: str) -> NoReturn:
        """Report differing checksums and wait for the next generation, which finds the cause. Raises Regroup."""
        self.say({"type": "accuse", "generation": self.generation, "text": text})
        self._await_call()

    def say(self, message: Message) -> None:
        """Send to the coordinator."""
        self._worker.say(message)

    def journal(self, kind: str, data: Message) -> None:
        """Write an event as this worker."""
        self._worker.journal(kind, data)

    def warn(self, text: str) -> None:
        """Journal a warning."""
        self.journal("warning.raised", {"text": text})

    def come_back(self, step: int) -> None:
        """Wait until all members can go back: a member still in ``step`` needs gradients that the others drop then.

        Raises Regroup when the generation ends meanwhile.
        """
        self.touch("user", step)
        self.say({"type": "back", "generation": self.generation})
        self._await("back")

    def again(self, message: Message) -> NoReturn:
        """Request a generation in which the members find a common state again. Raises Regroup."""
        self.say(message | {"generation": self.generation})
        self._await_call()

    def once(self, name: str) -> bool:
        """True for the first worker of the job that asks for ``name``."""
        return self._worker.context.job.claim(name)

    def injected(self, kind: str, step: int) -> None:
        """Journal a fault that the cell asked for."""
        place = {"node": self._worker.context.node, "rank": self.rank, "member": self._worker.member}
        self.journal("fault.injected", {"fault": kind, "step": step} | place)
        self.say({"type": "struck"})

    def finish(self, step: int, digest: str) -> None:
        """Wait until every member has reached the end, to help members that lack something. Raises Regroup."""
        self.touch("closing", step)
        whole = combined(self.gather(digest)) if self.replica > 1 else digest
        self.say({"type": "finished", "generation": self.generation, "step": step, "digest": whole})
        self._await("close")

    def close(self) -> None:
        """Close the mesh and the listening socket at the end of the session."""
        self._leave_mesh()
        self._door.close()

    def _leave_mesh(self) -> None:
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None

    def _form(self, message: Message, held: MemberState, micro_batches: int) -> RecoveryPlan:
        self._leave_mesh()
        self._gathered = 0
        self._hold_step = None
        self._leave_after = None
        self.generation, self.rank = message["generation"], message["rank"]
        self._worker.seat = self.rank
        addresses = [self._address(peer) for peer in message["members"]]
        self.world_size = len(addresses)
        control = self._worker.channel.fileno()
        if switched_on("init"):
            self.poll()
        else:  # without a look before: the call to the store may have come already, and is heard only there
            addresses = self._meet_at_store(addresses)
        self._mesh = self._door.form(self.generation, self.rank, addresses, control, self.poll, self._suspect)
        self._meet_neighbours()
        self._report(held)
        return _plan(self._await("go"), micro_batches)

    def _meet_at_store(self, addresses: list[Address]) -> list[Address]:
        """Learn the addresses at a central store of rank 0, as torchrun's workers do. Raises Regroup."""
        from ..comm import rendezvous

        own = addresses[self.rank]
        try:
            if self.rank == 0:
                store, port = rendezvous.host(own.host)
                self.say({"type": "rendezvous", "generation": self.generation, "port": port})
            else:
                store = rendezvous.connect(Address(addresses[0].host, self._await("rendezvous")["port"]))
            return rendezvous.meet(store, self.rank, own, self.world_size, self.poll)
        except OSError:
            self.lost(PeerLost(0))

    def _address(self, peer: Message) -> Address:
        return Address(peer["host"], peer["ports"][self.shard] if self.replica > 1 else peer["port"])

    def _report(self, held: MemberState) -> None:
        if held.step is None:  # looked up only now: a spare may have waited for long
            held = replace(held, checkpoints=tuple(self.checkpoints()))
        self.say({"type": "report", "generation": self.generation} | asdict(held))

    def _meet_neighbours(self) -> None:
        """Find the ranks whose memory can be read in place: each shows a segment with a secret to the others."""
        show = partial(all_gather, self.exchange, self.rank, self.world_size)
        apart = bool(os.environ.get(SOCKETS_ONLY_VARIABLE))
        seen = show(self._probe.token.pack() + self._probe.memory[:PROBE_BYTES])
        readable = bytes(rank != self.rank and not apart and can_read(found) for rank, found in enumerate(seen))
        read_by = [answer[self.rank] for answer in show(readable)]
        self.near = frozenset(rank for rank in range(self.world_size) if readable[rank] and read_by[rank])
        self.neighbours = frozenset(Token.unpack(seen[rank][:TOKEN_BYTES]) for rank in self.near)

    def _next_tag(self) -> dict[str, int]:
        """The name of the next gather of this replica's ranks."""
        self._gathered += 1
        return {"generation": self.generation, "count": self._gathered}

    def _suspect(self, rank: int) -> None:
        self.say({"type": "suspect", "generation": self.generation, "rank": rank})

    def _await(self, kind: str) -> Message:
        """Wait for a message of this kind and generation. Raises Regroup when another generation is called."""
        while True:
            message = self._receive(None)
            if message is None:
                continue
            if message["type"] == kind and message["generation"] == self.generation:
                return message
            self._obey(message)

    def _await_call(self) -> NoReturn:
        """Wait until another generation is called, and handle other messages meanwhile. Raises Regroup."""
        while True:
            if (message := self._receive(None)) is not None:
                self._obey(message)

    def _receive(self, timeout_s: float | None) -> Message | None:
        return self._worker.receive(timeout_s)

    def _obey(self, message: Message) -> None:
        refuse_stragglers(message, 0)
        kind = message["type"]
        if kind == "form":
            raise Regroup(message)
        if kind == "fault" and message["member"] == self._worker.member:
            faults.inject(message["fault"])
        elif kind == "interval":
            self.on_interval(message)
        elif kind == "snapshot" and self.generation == 0:
            self.take(message if self.replica == 1 else _of_shard(message, self.shard))
        elif kind == "offer" and message["generation"] == self.generation:
            self.serve(message)
        elif kind == "hold" and message["generation"] == self.generation:
            self._hold_step = message["step"]
            self.meet_if_told()
        elif kind == "leave" and message["generation"] == self.generation:
            self._leave_after = message["after"]


def _plan(go: Message, micro_batches: int) -> RecoveryPlan:
    shares = tuple(tuple(share) for share in go["shares"])
    replay = tuple((rank, steps) for rank, steps in go["replay"])
    held = tuple(tuple((low, high) for low, high in nodes) for nodes in go["held"])
    load = tuple(go["load"]) if go["load"] else None
    return RecoveryPlan(
        go["step"], tuple(go["donors"]), replay, tuple(go["fresh"]), held, shares,
        holdings_of(held, shares, micro_batches), load, tuple(go["loaders"]), go["generation"], go["rank"],
        tuple(go["owners"]), tuple(go["parted"]), tuple(go["paces"]),
    )  # fmt: skip


def _of_shard(snapshot: Message, shard: int) -> Message:
    """One rank's part of the snapshot of a replica of several ranks."""
    own = {"skeleton": snapshot["skeleton"][shard], "tokens": [tokens[shard] for tokens in snapshot["tokens"]]}
    return snapshot | own


def _ignore(message: Message) -> None:
    """Nobody to do it yet."""
