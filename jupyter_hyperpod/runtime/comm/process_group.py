"""A process group of torch.distributed that belongs to one generation, and is given up whole when that ends.

A collective cannot be interrupted: it blocks the thread that waits for it, under gloo even after an abort. So a thread
of the group waits, and the caller watches the coordinator's messages and the members' links besides. When the
generation ends, the thread is left behind with all memory that the collective may still write to; it ends when the
connections of the lost member do.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core.errors import TrainingError
from .collectives import Links
from .kinds import Kind, refuse_unequal
from .meeting_store import FAILED, MeetingStore
from .mesh import PeerLost

FORM_S = 20.0  # until every member has to be connected
NOTICE_S = 1.0  # in which the coordinator, or a link, explains why a collective failed
LEAVE_S = 1.0
LATE_S = 10.0  # all members begin a collective together, so it hangs if it takes longer, besides its bytes
SLOWEST_BYTES_S = 10e6
PIECE_BYTES = 1 << 20  # of a slice, per message: one member copies a piece while another copies the piece before it
Operation = Callable[[Any], None]  # gets the backend


class ProcessGroup:
    """The members of one generation. Raises TrainingError where they cannot be connected, Regroup."""

    def __init__(self, kind: Kind, links: Links) -> None:
        self._kind = kind
        self._links = links
        self._rank, self._world_size = links.rank, links.world_size
        self._jobs: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._done, self._tell = socket.socketpair()
        self._error: BaseException | None = None
        self.failed = ""  # why a collective failed that no loss explains
        self._ended: dict[str, Any] | None = None  # how forming ended here
        self._backend: Any = None
        self._store = MeetingStore()
        self._thread = threading.Thread(target=self._serve, name=f"hyperpod-{kind.name}", daemon=True)
        self._thread.start()
        try:
            self._all_to_all = self._meet()
        except BaseException:
            self.abandon()
            raise

    def exchange_slices(self, sent: torch.Tensor | None, received: torch.Tensor, holders: Sequence[int]) -> None:
        """Every rank of ``holders`` sends slice p of ``sent`` to rank p; ``received`` gets one slice per holder.

        Tensors of bytes; ``sent`` is None on others. A slice has as many bytes as ``received`` has per holder. What a
        holder sends to itself may be left out.
        """
        size = received.numel() // len(holders)
        outgoing = [size if sent is not None else 0] * self._world_size
        incoming = [size if rank in holders else 0 for rank in range(self._world_size)]
        given = received[:0] if sent is None else sent
        octets = size * self._world_size * 2
        if self._all_to_all:
            self.run(lambda backend: _wait([backend.alltoall_base(received, given, incoming, outgoing)]), octets)
        else:
            parts = given.split(outgoing), received.split(incoming)
            self.run(lambda backend: _wait(self._pairs(backend, *parts)), octets)

    def gather_slices(self, whole: torch.Tensor) -> None:
        """Every rank gives its slice of ``whole``, which has one per rank, and gets those of the others."""
        parts = whole.chunk(self._world_size)
        own = parts[self._rank]
        if self._kind.joined:
            self.run(lambda backend: _wait([backend._allgather_base(whole, own)]), whole.numel())
        else:
            self.run(lambda backend: _wait(self._pairs(backend, [own] * self._world_size, parts)), whole.numel())

    def send(self, sent: torch.Tensor, rank: int) -> None:
        """Send bytes to a rank that receives as many; where the kind is joined, all others receive none meanwhile."""
        if self._kind.joined:
            self._one_way(sent, sent[:0], rank)
        else:
            self.run(lambda backend: _wait([backend.send([sent], rank, 0)]), sent.numel())

    def receive(self, received: torch.Tensor, rank: int) -> None:
        """Receive bytes of a rank."""
        if self._kind.joined:
            self._one_way(received[:0], received, rank)
        else:
            self.run(lambda backend: _wait([backend.recv([received], rank, 0)]), received.numel())

    def _one_way(self, sent: torch.Tensor, received: torch.Tensor, rank: int) -> None:
        """NCCL would connect the two anew for a send and a receive, by a store that all have left."""
        outgoing, incoming = (
            [part.numel() * (peer == rank) for peer in range(self._world_size)] for part in (sent, received)
        )
        self.run(
            lambda backend: _wait([backend.alltoall_base(received, sent, incoming, outgoing)]),
            sent.numel() + received.numel(),
        )

    def run(self, operation: Operation, octets: int = 0) -> None:
        """Run `operation`, which moves ``octets``, in the group's thread. Raises Regroup when the generation ends.

        Where it fails without a reason that the coordinator knows, or hangs, the members regroup, too.
        """
        self._jobs.put(operation)
        limit_s = LATE_S + octets / SLOWEST_BYTES_S
        if self._links.wait_for(self._done.fileno(), limit_s):
            self._done.recv(1)
            if self._error is None:
                return
            self._links.wait_for(self._done.fileno(), NOTICE_S)
            self.failed = _first_line(self._error)
        else:
            self.failed = f"it did not end within {limit_s:.0f} s"
        self._links.warn(f"a collective of {self._kind.name} failed: {self.failed}")
        self._links.lost(PeerLost((self._rank + 1) % self._world_size))

    def close(self) -> None:
        """Leave in order: no collective is under way."""
        self._jobs.put(None)
        self._thread.join(LEAVE_S)

    def abandon(self) -> None:
        """Leave while a collective may be under way: its thread, and the memory that it holds, stay behind."""
        self._store.close()
        self._jobs.put(None)
        if self._backend is not None:
            self._kind.abort(self._backend)

    def _pairs(self, backend: Any, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> list[Any]:
        """Send and receive slices by rank, in pieces; none has to be sent to itself.

        What is received is asked for first: a sender begins only when it has been asked.
        """
        peers = [(self._rank + distance) % self._world_size for distance in range(1, self._world_size)]
        wanted = [(peer, tag, piece) for peer in peers for tag, piece in enumerate(_pieces(received[peer]))]
        given = [(peer, tag, piece) for peer in peers for tag, piece in enumerate(_pieces(sent[peer]))]
        works = [backend.recv([piece], peer, tag) for peer, tag, piece in wanted]
        return works + [backend.send([piece], peer, tag) for peer, tag, piece in given]

    def _meet(self) -> bool:
        """Form the group together; True where every member can exchange slices in one collective."""
        began_s = time.monotonic()

        def ended() -> dict[str, Any] | None:
            if self._ended is None and time.monotonic() - began_s > FORM_S:
                return {FAILED: f"not connected within {FORM_S:g} s"}
            return self._ended

        found = self._store.meet(self._links.exchange, self._rank, self._world_size, ended)
        if failed := [(rank, said[FAILED]) for rank, said in enumerate(found) if FAILED in said]:
            rank, why = failed[0]
            raise TrainingError(
                f"the members could not be connected by {self._kind.name}: rank {rank} says: {why}. It needs "
                "connections between all nodes on any port: name the network with GLOO_SOCKET_IFNAME or "
                "NCCL_SOCKET_IFNAME, or submit with --collectives host, which uses the job's own connections"
            )
        refuse_unequal(said["description"] for said in found)
        return all(said["all_to_all"] for said in found)

    def _serve(self) -> None:
        """The group's thread: form, then run one operation after the other."""
        try:
            self._backend = self._kind.make(self._store, self._rank, self._world_size)
            self._ended = {"all_to_all": self._try_all_to_all(), "description": self._kind.description}
        except BaseException as error:
            self._ended = {FAILED: _first_line(error)}
        self._store.wake()
        while (operation := self._jobs.get()) is not None:
            try:
                operation(self._backend)
                self._kind.finish()
            except BaseException as error:
                self._error = error
            del operation  # it holds tensors
            self._tell.send(b"d")
        self._backend = None  # may wait for what is under way
        self._tell.close()
        self._done.close()

    def _try_all_to_all(self) -> bool:
        """Connect all pairs by a first exchange; False where this backend lacks the collective, or pairs are faster."""
        sent, received = (torch.zeros(self._world_size, dtype=torch.uint8, device=self._kind.device) for _ in "sr")
        ones = [1] * self._world_size
        try:
            _wait([self._backend.alltoall_base(received, sent, ones, ones)])
            self._kind.finish()
        except (NotImplementedError, RuntimeError) as error:
            if "support" not in str(error) and "implement" not in str(error):
                raise
            return False
        return self._kind.joined


def _pieces(slice_: torch.Tensor) -> Sequence[torch.Tensor]:
    return slice_.split(PIECE_BYTES) if slice_.numel() else ()


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
