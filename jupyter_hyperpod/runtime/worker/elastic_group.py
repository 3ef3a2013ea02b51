"""Membership seen from inside a worker: the process stays, the generation around it changes.

`Group` speaks with the coordinator and holds the mesh. Any wait inside it may raise `Regroup`; the session then
calls `form`, says what it holds and learns how to go on. `Solo` is the same outside a job: one member, nobody else.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from ...core.errors import Stopped, TrainingError
from ...policy.batching import Node
from ...policy.guard import Reading
from ...policy.membership import COMPUTE, WARM_UP
from ...policy.recovery import Saved
from .. import faults
from ..comm.mesh import Address, Door, Mesh, PeerLost, Transfer, all_gather
from ..comm.reduction import holdings_of
from ..comm.shared_memory import PROBE_BYTES, TOKEN_BYTES, Segment, Token, can_read
from ..connection import Message
from .main import Worker, switched_on

# set where nodes are to behave like different hosts although they are one
SOCKETS_ONLY_VARIABLE = "HYPERPOD_SOCKETS_ONLY"


class Regroup(Exception):
    """A new generation is being formed; ``message`` says which members."""

    def __init__(self, message: Message) -> None:
        super().__init__(f"generation {message['generation']}")
        self.message = message


@dataclass(frozen=True, slots=True)
class Held:
    """What this member says it holds: see policy.recovery.Report."""

    step: int | None
    nodes: tuple[Node, ...]
    history: int
    digest: str
    statement: Message = field(default_factory=dict)
    checkpoints: tuple[Saved, ...] = ()


@dataclass(frozen=True, slots=True)
class Go:
    """How the generation goes on: the coordinator's policy.recovery.Plan, by rank."""

    generation: int
    rank: int
    step: int
    donors: tuple[int, ...]
    replay: tuple[tuple[int, int], ...]
    fresh: tuple[int, ...]
    held: tuple[tuple[Node, ...], ...]
    shares: tuple[tuple[int, ...], ...]
    holdings: tuple[tuple[Node, ...], ...]
    owners: tuple[str, ...]
    parted: tuple[str, ...] = ()
    paces: tuple[float, ...] | None = None  # how long each member needs for a micro-batch, relative to the others
    load: Saved | None = None  # the durable checkpoint that `loaders` take up first
    loaders: tuple[int, ...] = ()
    ordinary: bool = False  # the plan of an undisturbed step, once the first step of a generation is committed

    @property
    def world_size(self) -> int:
        """Members of the generation."""
        return len(self.owners)


class Whole:
    """A member of one rank: what it computes, holds and says is all of its replica's."""

    shard = 0
    replica = 1  # ranks
    warm = False  # this process has computed a micro-batch in this session
    place: tuple[int, ...] = ()  # what the seed of a micro-batch depends on besides seed, step and index

    def part(self, indices: list[int]) -> list[int]:
        """Those samples of a micro-batch that this rank computes."""
        return indices

    def gather(self, value: Any) -> list[Any]:
        """What every rank of this replica says here (JSON), by shard: from here on they act alike. Raises Regroup."""
        return [value]

    def combined(self, numbers: Sequence[int]) -> list[int]:
        """Checksums of 64 bits over all ranks of this replica. Raises Regroup."""
        return list(numbers)

    def agree(self, reading: Reading) -> Reading:
        """The numbers of a reduced step over all ranks of this replica, which apply it all or none. Raises Regroup."""
        return reading


class Solo(Whole):
    """One member without a cluster: the same trajectory, nothing to recover from."""

    rank = 0
    world_size = 1
    near: frozenset[int] = frozenset()
    neighbours: frozenset[Token] = frozenset()
    session = 1
    newcomer = False

    def __init__(self) -> None:
        self.checkpoints: Callable[[], Sequence[Saved]] = list
        self.on_interval: Callable[[Message], None] = _ignore

    def join(self, opened: Message, held: Callable[[], Held], micro_batches: int) -> Go:
        """Begin at once, with every micro-batch; there is no other state to compare with, so `held` is not asked."""
        return self._begin(micro_batches)

    def form(self, message: Message, held: Held, micro_batches: int) -> Go:
        """Begin again, without the checkpoint that could not be read."""
        return self._begin(micro_batches)

    def come_back(self, step: int) -> None:
        """Nobody to wait for."""

    def again(self, message: Message) -> NoReturn:
        """State is to be found again. Raises Regroup."""
        raise Regroup(message | {"generation": 0})

    def _begin(self, micro_batches: int) -> Go:
        share = (tuple(range(micro_batches)),)
        holdings = tuple(holdings_of(((),), share, micro_batches))
        saved = max(self.checkpoints(), default=None)
        step, loaders = (saved[0], (0,)) if saved is not None else (0, ())
        return Go(0, 0, step, (0,), (), (), ((),), share, holdings, ("solo",), load=saved, loaders=loaders)

    def poll(self) -> None:
        """Nobody calls."""

    def next_leaf(self, leaf: int) -> None:
        """Nobody calls."""

    def leave_if_asked(self, step: int) -> None:
        """Nobody asks."""

    def touch(self, phase: str, step: int) -> None:
        """Nobody watches."""

    def show_pace(self, step: int, seconds: float) -> None:
        """Nobody compares."""

    def exchange(self, sends: list[Transfer], receives: list[Transfer]) -> None:
        """Nobody to exchange with."""

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """There is no peer."""
        raise AssertionError("a session outside a job has no peers") from lost

    def meet_if_told(self) -> None:
        """Nobody joins."""

    def accuse(self, text: str) -> NoReturn:
        """There is nobody to get a sound state from."""
        raise TrainingError(
            f"silent data corruption: {text}; where that happens again, the loss function itself writes to the "
            "training state, through .data or numpy: write between the steps, under torch.no_grad()"
        )

    def say(self, message: Message) -> None:
        """Nobody listens."""

    def journal(self, kind: str, data: Message) -> None:
        """No journal outside a job."""

    def once(self, name: str) -> bool:
        """There is no other process that could do it again."""
        return True

    def injected(self, kind: str, step: int) -> None:
        """No journal outside a job."""

    def finish(self, step: int, digest: str) -> None:
        """Nobody to wait for."""

    def warn(self, text: str) -> None:
        """Tell the person."""
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        """Nothing to close."""


class Group(Whole):
    """This worker's place among the members of its job."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._door = Door(worker.listener, worker.context.job.secret())
        self._mesh: Mesh | None = None
        self.generation = 0
        self.session = 0  # which one of its cell, from 1
        self.rank = worker.rank if worker.rank is not None else -1
        self.world_size = worker.world_size
        self.near: frozenset[int] = frozenset()
        self.neighbours: frozenset[Token] = frozenset()  # a segment of each rank that is near: held while it lives
        self.serve: Callable[[Message], None] = _ignore  # takes a stripe of the state for newcomers
        self.take: Callable[[Message], None] = _ignore  # a newcomer loads a snapshot
        self._step = 0
        self._hold_step: int | None = None
        self._leave_after: int | None = None
        self.checkpoints: Callable[[], Sequence[Saved]] = list  # those that a member without state could load
        self.on_interval: Callable[[Message], None] = _ignore
        self._probe = Segment(PROBE_BYTES)
        self._probe.memory[:] = os.urandom(PROBE_BYTES)

    def join(self, opened: Message, held: Callable[[], Held], micro_batches: int) -> Go:
        """Tell the coordinator that a session opens here and wait for the generation it trains in."""
        self._worker.sessions += 1
        self.session = self._worker.sessions
        held()  # a digest takes its time: not when the others wait for it
        self.say({"type": "session", "index": self._worker.sessions} | opened)
        self.touch("user", 0)
        message = self._await("form")
        return self.form(message, held(), micro_batches)

    def form(self, message: Message, held: Held, micro_batches: int) -> Go:
        """Form the generation of `message`, or any newer one that overtakes it."""
        while True:
            try:
                return self._form(message, held, micro_batches)
            except Regroup as newer:
                message = newer.message

    def poll(self) -> None:
        """Look whether the coordinator has called, without waiting. Raises Regroup."""
        while (message := self._receive(0.0)) is not None:
            self._obey(message)

    def leave_if_asked(self, step: int) -> None:
        """At a step boundary: where this member is to leave, say that it has, and wait to be ended.

        Raises Regroup where the coordinator changes its mind.
        """
        self.poll()
        if self._leave_after is not None and step >= self._leave_after:
            self.touch("closing", step)
            self.say({"type": "left", "generation": self.generation, "step": step})
            raise Regroup(self._await("form"))

    def next_leaf(self, leaf: int) -> None:
        """Micro-batch `leaf` is about to be computed, which nothing interrupts. Raises Regroup."""
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
        """It begins outside the generation that trains."""
        return self._worker.rank is None

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """A peer is gone: say so and wait for the generation without it. Raises Regroup."""
        self._suspect(lost.rank)
        raise Regroup(self._await("form")) from cause or lost

    def meet_if_told(self) -> None:
        """At the end of a step: raises Regroup where newcomers join now, when they have been announced."""
        if self._hold_step is not None and self._step >= self._hold_step:
            raise Regroup(self._await("form"))

    def accuse(self, text: str) -> NoReturn:
        """Checksums differ: say so and wait for the generation that is formed to find out. Raises Regroup."""
        self.say({"type": "accuse", "generation": self.generation, "text": text})
        raise Regroup(self._await("form"))

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
        """Wait until every member is to go back: one that is still in ``step`` needs what the others give up then.

        Raises Regroup when the generation ends meanwhile.
        """
        self.touch("user", step)
        self.say({"type": "back", "generation": self.generation})
        self._await("back")

    def again(self, message: Message) -> NoReturn:
        """Ask for a generation in which state is found again. Raises Regroup."""
        self.say(message | {"generation": self.generation})
        raise Regroup(self._await("form"))

    def once(self, name: str) -> bool:
        """True the first time that any worker of the job asks for ``name``."""
        return self._worker.context.job.claim(name)

    def injected(self, kind: str, step: int) -> None:
        """Journal a fault that the cell asked for."""
        place = {"node": self._worker.context.node, "rank": self.rank, "member": self._worker.member}
        self.journal("fault.injected", {"fault": kind, "step": step} | place)
        self.say({"type": "struck"})

    def finish(self, step: int, digest: str) -> None:
        """Wait until every member has come to the end, so that all get what they still lack. Raises Regroup."""
        self.touch("closing", step)
        self.say({"type": "finished", "generation": self.generation, "step": step, "digest": digest})
        self._await("close")

    def close(self) -> None:
        """The session is over: leave the mesh and shut the door."""
        self._leave_mesh()
        self._door.close()

    def _leave_mesh(self) -> None:
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None

    def _form(self, message: Message, held: Held, micro_batches: int) -> Go:
        self._leave_mesh()
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
        go = self._await("go")
        shares = tuple(tuple(share) for share in go["shares"])
        replay = tuple((rank, steps) for rank, steps in go["replay"])
        held_nodes = tuple(tuple((low, high) for low, high in nodes) for nodes in go["held"])
        holdings = tuple(holdings_of(held_nodes, shares, micro_batches))
        return Go(
            go["generation"], go["rank"], go["step"], tuple(go["donors"]), replay, tuple(go["fresh"]),
            held_nodes, shares, holdings, tuple(go["owners"]), tuple(go["parted"]), tuple(go["paces"]),
            tuple(go["load"]) if go["load"] else None, tuple(go["loaders"]),
        )  # fmt: skip

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
        return Address(peer["host"], peer["port"])

    def _report(self, held: Held) -> None:
        if held.step is None:  # looked up only now: a spare may have waited for long
            held = replace(held, checkpoints=tuple(self.checkpoints()))
        self.say({"type": "report", "generation": self.generation} | asdict(held))

    def _meet_neighbours(self) -> None:
        """Find out whose memory can be read in place: each shows a segment with a secret, the other reads it there."""
        show = partial(all_gather, self.exchange, self.rank, self.world_size)
        apart = bool(os.environ.get(SOCKETS_ONLY_VARIABLE))
        seen = show(self._probe.token.pack() + self._probe.memory[:PROBE_BYTES])
        readable = bytes(rank != self.rank and not apart and can_read(found) for rank, found in enumerate(seen))
        read_by = [answer[self.rank] for answer in show(readable)]
        self.near = frozenset(rank for rank in range(self.world_size) if readable[rank] and read_by[rank])
        self.neighbours = frozenset(Token.unpack(seen[rank][:TOKEN_BYTES]) for rank in self.near)

    def _suspect(self, rank: int) -> None:
        self.say({"type": "suspect", "generation": self.generation, "rank": rank})

    def _await(self, kind: str) -> Message:
        """Wait for a message of this kind and generation; any other call of the coordinator raises."""
        while True:
            message = self._receive(None)
            if message is None:
                continue
            if message["type"] == kind and (kind == "form" or message["generation"] == self.generation):
                return message
            self._obey(message)

    def _receive(self, timeout_s: float | None) -> Message | None:
        return self._worker.receive(timeout_s)

    def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "form":
            raise Regroup(message)
        if kind == "stop":
            raise Stopped("the job was stopped")
        if kind == "fault" and message["member"] == self._worker.member:
            faults.inject(message["fault"])
        elif kind == "interval":
            self.on_interval(message)
        elif kind == "snapshot" and self.generation == 0:
            self.take(message)
        elif kind == "offer" and message["generation"] == self.generation:
            self.serve(message)
        elif kind == "hold" and message["generation"] == self.generation:
            self._hold_step = message["step"]
            self.meet_if_told()
        elif kind == "leave" and message["generation"] == self.generation:
            self._leave_after = message["after"]


def _ignore(message: Message) -> None:
    """Nobody to do it yet."""
