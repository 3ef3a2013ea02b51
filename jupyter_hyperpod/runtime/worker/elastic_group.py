"""ElasticGroup: a worker's membership in its job. The process stays while generations change.

`ElasticGroup` talks to the coordinator and holds the mesh. Any wait inside it may raise `Regroup`; the session then
calls `form`, reports what it holds and gets the plan by which it continues.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

from ...policy.membership import COMPUTE, WARM_UP
from ...policy.recovery import MemberState, RecoveryPlan
from ...system.addresses import SOCKETS_ONLY_VARIABLE
from ...system.encryption import was_changed
from .. import faults
from ..comm.mesh import Address, Mesh, MeshListener, PeerLost, Transfer, all_gather
from ..comm.shared_memory import PROBE_BYTES, TOKEN_BYTES, Segment, Token, can_read
from ..protocol import facts, orders
from ..protocol.codec import Message
from ..protocol.dispatch import handlers, handles
from . import displays
from .group_base import GroupBase, Regroup, ignore
from .main import Worker, switched_on
from .replica import refuse_stragglers
from .replica_state import combined

M = TypeVar("M", bound=Message)
CHANGED = (
    "what rank {rank} sent was changed on the way ({reason}); nothing of it was used, and the members connect anew. "
    "Where this comes again, a network card, a cable or a switch is faulty, or somebody interferes"
)


class ElasticGroup(GroupBase):
    """This worker's place among the members of its job.

    A rank of a replica of several (see `replica_sync`) exchanges with the ranks of the same shard, its lane.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._place = worker.place
        self.collectives = worker.context.spec.collectives
        self.host = worker.listener.getsockname()[0]
        self.shard, self.replica = self._place.shard, self._place.size
        self.place = (self.shard,) if self.replica > 1 else ()
        self._gathered = 0  # number of gathers of this replica's ranks in this generation
        self.secret = worker.context.job.secret()
        self._mesh_listener = MeshListener(worker.listener, self.secret)
        self._mesh: Mesh | None = None
        self.generation = 0
        self.session = 0  # number of the session in its cell, from 1
        self.rank = worker.rank if worker.rank is not None else -1
        self.world_size = worker.world_size
        self.near: frozenset[int] = frozenset()
        self.neighbours: frozenset[Token] = frozenset()  # a segment per rank on this host, while it lives
        self.on_offer: Callable[[orders.OfferState], None] = ignore
        self.on_snapshot: Callable[[orders.TakeSnapshot], None] = ignore
        self._step = 0
        self._hold_step: int | None = None
        self._leave_after: int | None = None
        self._handlers = handlers(self)
        self._names: frozenset[str] = frozenset()  # of the members of the present generation
        self._defers = False  # newcomers wait until what the cell exchanges is complete
        self._later: list[Message] = []  # orders that wait until the cell no longer stands aside
        self._probe = Segment(PROBE_BYTES)
        self._probe.memory[:] = os.urandom(PROBE_BYTES)

    def join(self, opened: facts.SessionOpened, held: Callable[[], MemberState]) -> RecoveryPlan:
        """Report the opened session to the coordinator, wait for its generation, and form it."""
        self._worker.sessions += 1
        self.session = self._worker.sessions
        held()  # computed now, because a digest takes long and others would wait for it later
        self.send(replace(opened, index=self._worker.sessions))
        self.touch("user", 0)
        try:
            self._await_call()
        except Regroup as call:
            return self.form(call.order, held())

    def form(self, call: orders.FormGeneration, held: MemberState) -> RecoveryPlan:
        """Form the generation of `call`, or any newer one that overtakes it."""
        while True:
            try:
                return self._form(call, held)
            except Regroup as newer:
                call = newer.order

    def poll(self) -> None:
        """Check for a call of the coordinator, without waiting. Raises Regroup."""
        while (order := self._receive(0.0)) is not None:
            self._obey(order)

    def leave_if_asked(self, step: int) -> None:
        """At a step boundary: if this member has to leave, report that it has left, and wait to be ended.

        Raises Regroup where the coordinator changes its mind.
        """
        self.poll()
        if self._leave_after is not None and step >= self._leave_after:
            self.touch("closing", step)
            self.send(facts.MemberLeft(self.generation, step))
            self._await_call()

    def next_leaf(self, leaf: int) -> None:
        """Micro-batch `leaf` is about to be computed without interruption. Raises Regroup."""
        self.poll()

    def touch(self, phase: str, step: int) -> None:
        """Show the agent that something moved."""
        self._step = step
        first = phase == COMPUTE and not self.warm
        self._worker.progress.touch(WARM_UP if first else phase, step)

    def begin_step(self, step: int) -> None:
        """This step begins, from 1: what is printed from now on belongs to it."""
        self._worker.progress.begin_step(self.session, step)

    def show_pace(self, step: int, seconds: float) -> None:
        """Show the agent how long a micro-batch took."""
        self._worker.progress.show_pace(step, seconds)

    def show_times(self, compute_s: float, exchange_s: float, waits_s: float) -> None:
        """Show the agent what a step took of this member."""
        self._worker.progress.add_step(compute_s, exchange_s, waits_s)

    @property
    def waited_s(self) -> float:
        """How long exchanges of this generation have waited for peers; 0 where another library exchanges."""
        return 0.0 if self._mesh is None else self._mesh.waited_s

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Exchange buffers with peers. Raises Regroup when the generation ends meanwhile."""
        assert self._mesh is not None
        self.poll()
        try:
            self._mesh.exchange(sends, receives, self._worker.channel.fileno(), self.poll)
        except PeerLost as lost:
            self.lost(lost)

    def renew_keys(self) -> None:
        """See `GroupBase`."""
        assert self._mesh is not None
        try:
            self._mesh.renew_keys(self._worker.channel.fileno(), self.poll)
        except PeerLost as lost:
            self.lost(lost)

    def wait_for(self, descriptor: int, timeout_s: float | None = None) -> bool:
        """Wait until `descriptor` can be read; False after the timeout. Raises Regroup, also where a peer is lost."""
        assert self._mesh is not None
        self.poll()
        try:
            return self._mesh.wait_for(descriptor, timeout_s, self._worker.channel.fileno(), self.poll)
        except PeerLost as lost:
            self.lost(lost)

    def wait_outside(self, descriptor: int) -> None:
        """Before this newcomer's first generation: wait until `descriptor` can be read. Raises Regroup."""
        poller = select.poll()
        for watched in (descriptor, self._worker.channel.fileno()):
            poller.register(watched, select.POLLIN)
        while True:
            self.poll()
            if descriptor in {ready for ready, _ in poller.poll()}:
                return

    @property
    def newcomer(self) -> bool:
        """Whether this member begins outside the training generation."""
        return self._worker.rank is None

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """Report a lost peer and wait for the generation without it. Raises Regroup."""
        self._defers = False
        self._take_up_later()
        if was_changed(lost.__cause__):
            self.warn(CHANGED.format(rank=lost.rank, reason=lost.__cause__))
        self._suspect(lost.rank)
        try:
            self._await_call()
        except Regroup as call:
            raise call from cause or lost

    def stand_aside(self, aside: bool, answers_calls: bool = False) -> None:
        """Let newcomers, and requests for the state, wait until this is called with False.

        ``answers_calls``: a generation is formed as soon as it is called, also one that only adds newcomers.
        """
        super().stand_aside(aside)
        self._defers = aside and not answers_calls
        if not aside:
            self._take_up_later()

    def _take_up_later(self) -> None:
        self._worker.inbox[:0], self._later = self._later, []

    def regroup_if_due(self) -> None:
        """At the end of a step: raises Regroup where newcomers join now, when they have been announced."""
        if self._hold_step is not None and self._step >= self._hold_step:
            self._await_call()

    def accuse(self, text: str) -> NoReturn:
        """Report differing checksums and wait for the next generation, which finds the cause. Raises Regroup."""
        self.send(facts.CorruptionFound(self.generation, text))
        self._await_call()

    def send(self, message: Message) -> None:
        """Send to the coordinator."""
        self._worker.send(message)

    def journal(self, kind: str, data: dict[str, Any]) -> None:
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
        self.send(facts.ReadyToGoBack(self.generation))
        self._await(orders.GoBack)

    def again(self, message: facts.RestoreAsked | facts.CheckpointUnreadable | facts.NewcomersEarly) -> NoReturn:
        """Request a generation in which the members find a common state again, or go on as others. Raises Regroup."""
        self.send(message)
        self._await_call()

    def once(self, name: str) -> bool:
        """True for the first worker of the job that asks for ``name``."""
        return self._worker.context.job.claim(name)

    def injected(self, kind: str, step: int) -> None:
        """Journal a fault that the cell asked for."""
        place = {"node": self._worker.context.node, "rank": self.rank, "member": self._worker.member}
        self.journal("fault.injected", {"fault": kind, "step": step} | place)
        self.send(facts.FaultStruck())

    def finish(self, step: int, digest: str) -> None:
        """Wait until every member has reached the end, to help members that lack something. Raises Regroup."""
        self.touch("closing", step)
        whole = combined(self.gather(digest)) if self.replica > 1 else digest
        self.send(facts.SessionFinished(self.generation, step, whole))
        self._await(orders.CloseSession)

    def close(self) -> None:
        """Close the mesh and the listening socket at the end of the session."""
        self._leave_mesh()
        self._mesh_listener.close()

    def _leave_mesh(self) -> None:
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None

    def _form(self, call: orders.FormGeneration, held: MemberState) -> RecoveryPlan:
        self._leave_mesh()
        self._gathered = 0
        self._hold_step = None
        self._leave_after = None
        self.generation, self.rank = call.generation, call.rank
        self._worker.present_rank = self.rank
        displays.take_over()
        self._defers = False
        self._later = [order for order in self._later if not isinstance(order, orders.FormGeneration)]
        self._names = frozenset(peer.member for peer in call.members)
        addresses = [self._address(peer) for peer in call.members]
        self.world_size = len(addresses)
        control = self._worker.channel.fileno()
        if switched_on("init"):
            self.poll()
        else:  # no poll before: it would drop the address of the store, which may have arrived already
            addresses = self._rendezvous(addresses)
        self._mesh = self._mesh_listener.form(
            self.generation, self.rank, addresses, control, self.poll, self._suspect, self.warn
        )
        self._find_neighbours()
        self._report(held)
        return self._await(orders.FollowPlan).plan

    def _rendezvous(self, addresses: list[Address]) -> list[Address]:
        """Learn the addresses at a central store of rank 0, as torchrun's workers do. Raises Regroup."""
        from ..comm import rendezvous

        own = addresses[self.rank]
        try:
            if self.rank == 0:
                store, port = rendezvous.host(own.host)
                self.send(facts.RendezvousStore(self.generation, port))
            else:
                store = rendezvous.connect(Address(addresses[0].host, self._await(facts.RendezvousStore).port))
            return rendezvous.exchange_addresses(store, self.rank, own, self.world_size, self.poll)
        except OSError:
            self.lost(PeerLost(0))

    def _address(self, peer: orders.Peer) -> Address:
        return Address(peer.host, peer.ports[self.shard] if self.replica > 1 else peer.port)

    def _report(self, held: MemberState) -> None:
        if held.step is None:  # looked up only now: a spare may have waited for long
            held = replace(held, checkpoints=tuple(self.checkpoints()))
        self.send(facts.StateReported(self.generation, held))

    def _find_neighbours(self) -> None:
        """Find the ranks whose memory can be read in place: each shows a segment with a secret to the others."""
        show = partial(all_gather, self.exchange, self.rank, self.world_size)
        apart = bool(os.environ.get(SOCKETS_ONLY_VARIABLE))
        seen = show(self._probe.token.pack() + self._probe.memory[:PROBE_BYTES])
        readable = bytes(rank != self.rank and not apart and can_read(found) for rank, found in enumerate(seen))
        read_by = [answer[self.rank] for answer in show(readable)]
        self.near = frozenset(rank for rank in range(self.world_size) if readable[rank] and read_by[rank])
        self.neighbours = frozenset(Token.unpack(seen[rank][:TOKEN_BYTES]) for rank in self.near)

    def _next_tag(self) -> tuple[int, int]:
        """Names what the ranks of this replica gather now: the generation, and a count of such gatherings in it."""
        self._gathered += 1
        return self.generation, self._gathered

    def _suspect(self, rank: int) -> None:
        self.send(facts.PeerSuspected(self.generation, rank))

    def _await(self, kind: type[M]) -> M:
        """Wait for an order of this kind and generation. Raises Regroup when another generation is called."""
        while True:
            order = self._receive(None)
            if isinstance(order, kind) and getattr(order, "generation", None) == self.generation:
                return order
            if order is not None:
                self._obey(order)

    def _await_call(self) -> NoReturn:
        """Wait until another generation is called, and handle other messages meanwhile. Raises Regroup."""
        while True:
            if (order := self._receive(None)) is not None:
                self._obey(order)

    def _receive(self, timeout_s: float | None) -> Message | None:
        return self._worker.receive(timeout_s)

    def _obey(self, order: Message) -> None:
        """Act upon an order; one that was meant for an earlier moment is ignored."""
        refuse_stragglers(order, 0)
        if self._comes_later(order):
            self._later.append(order)
            return
        if (handler := self._handlers.get(type(order))) is not None:
            handler(order)

    def _comes_later(self, order: Message) -> bool:
        """Whether an order waits until the cell does not stand aside any more."""
        if isinstance(order, orders.FormGeneration):
            return self._defers and self._names <= {peer.member for peer in order.members}
        return self.aside and isinstance(order, orders.OfferState | orders.MeetAfter)

    @handles(orders.FormGeneration)
    def _regroup(self, call: orders.FormGeneration) -> None:
        raise Regroup(call)

    @handles(orders.InjectFault)
    def _inject_fault(self, order: orders.InjectFault) -> None:
        if order.member == self._worker.member:
            faults.inject(order.fault)

    @handles(orders.CheckpointInterval)
    def _set_interval(self, order: orders.CheckpointInterval) -> None:
        self.on_interval(order)

    @handles(orders.TakeSnapshot)
    def _take_snapshot(self, order: orders.TakeSnapshot) -> None:
        if self.generation == 0:
            self.on_snapshot(order)

    @handles(orders.OfferState)
    def _offer_state(self, order: orders.OfferState) -> None:
        if order.generation == self.generation:
            self.on_offer(order)

    @handles(orders.MeetAfter)
    def _pause_after(self, order: orders.MeetAfter) -> None:
        if order.generation == self.generation:
            self._hold_step = order.step
            self.regroup_if_due()

    @handles(orders.LeaveAfter)
    def _leave_later(self, order: orders.LeaveAfter) -> None:
        if order.generation == self.generation:
            self._leave_after = order.after
