"""Stripes of the state from device to device: a donor sends while it trains, by a process group of it and a newcomer.

A donor listens on a port of its own; both sides prove the job's secret, as in a generation's mesh, and form the group
over that connection. The group belongs to one transfer: when it is lost, nothing else ends.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

import torch

from ...core.errors import TrainingError
from .kinds import Kind
from .mesh import Address, Mesh, MeshListener, PeerLost, Transfer, listen
from .process_group import ProcessGroup
from .shared_memory import Token

CHUNK_BYTES = 32 << 20
QUIET_S = 30.0  # without a chunk: the other side hangs, and nobody has ended it
NEWCOMER, DONOR = 0, 1  # ranks in a pair
NOWHERE = Address("", 0)


class TransferCancelled(Exception):
    """This side has given the transfer up."""


class StripeSource(NamedTuple):
    """Where a donor sends its stripe, from ``octets`` bytes of its device's memory."""

    host: str
    port: int
    generation: int
    octets: int

    def text(self) -> str:
        """The source as text, for `source_of`."""
        return json.dumps(self)


def source_of(text: str) -> StripeSource:
    """Inverse of `StripeSource.text`. Raises OSError for any other text."""
    try:
        return StripeSource(*json.loads(text))
    except (ValueError, TypeError) as error:
        raise OSError(f"{text[:80]!r} names no source of a stripe") from error


class TransferCancellation:
    """Ends all waiting of several threads; ``descriptor`` can be read from then on."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    @property
    def descriptor(self) -> int:
        """Watched while waiting."""
        return self._theirs.fileno()

    def set(self) -> None:
        """Let all who wait raise TransferCancelled."""
        self._ours.close()

    def close(self) -> None:
        """Nobody waits any more."""
        self._ours.close()
        self._theirs.close()

    def check(self) -> NoReturn:
        """Called where the descriptor can be read."""
        raise TransferCancelled


class PairLinks:
    """The connection of two ranks, with what a process group needs of its members: see `Links`."""

    near: frozenset[int] = frozenset()
    neighbours: frozenset[Token] = frozenset()
    collectives = host = ""
    world_size = 2

    def __init__(self, mesh: Mesh, cancellation: TransferCancellation) -> None:
        self.rank, self.generation = mesh.rank, mesh.generation
        self._mesh = mesh
        self._cancellation = cancellation

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Exchange buffers. Raises TransferCancelled, PeerLost."""
        self._mesh.exchange(sends, receives, self._cancellation.descriptor, self._cancellation.check)

    def wait_for(self, descriptor: int, timeout_s: float | None = None) -> bool:
        """Wait until `descriptor` can be read; False after the timeout. Raises TransferCancelled, PeerLost."""
        waited_s = QUIET_S if timeout_s is None else timeout_s
        cancellation = self._cancellation
        found = self._mesh.wait_for(descriptor, waited_s, cancellation.descriptor, cancellation.check)
        if not found and timeout_s is None:
            raise PeerLost(1 - self.rank)
        return found

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """The other side has gone, and no coordinator has to know."""
        raise lost from cause

    def warn(self, text: str) -> None:
        """The newcomer gets the state when it joins, so nobody has to read this."""


class StripeServer:
    """Sends ``stripe`` (bytes on the device) to every newcomer that asks, from threads of its own, until `close`.

    The stripe must not change meanwhile. ``host``: the address to listen on.
    """

    def __init__(self, kind: Kind, host: str, secret: bytes, generation: int, stripe: torch.Tensor) -> None:
        self._kind = kind
        self._stripe = stripe
        kind.finish()  # the stripe is complete before another thread sends it
        self._listener = listen(host)
        self._entrance = MeshListener(self._listener, secret)
        self._cancellation = TransferCancellation()
        self.source = StripeSource(host, self._listener.getsockname()[1], generation, stripe.numel())
        threading.Thread(target=self._serve, name="hyperpod-stripe", daemon=True).start()

    def close(self) -> None:
        """Stop sending; a newcomer that has not got all gets the state in another way."""
        self._cancellation.set()

    def _serve(self) -> None:
        sending: list[threading.Thread] = []
        addresses, descriptor, check = [NOWHERE, NOWHERE], self._cancellation.descriptor, self._cancellation.check
        try:
            while True:
                mesh = self._entrance.form(self.source.generation, DONOR, addresses, descriptor, check, _try_again)
                sending.append(threading.Thread(target=self._send, args=(mesh,), daemon=True))
                sending[-1].start()
        except (TransferCancelled, OSError, TrainingError):  # who does not or cannot encrypt is told when it joins
            self._entrance.close()
            self._listener.close()
        for thread in sending:
            thread.join()
        self._cancellation.close()

    def _send(self, mesh: Mesh) -> None:
        with suppress(TransferCancelled, PeerLost, TrainingError):
            _carry(self._kind, PairLinks(mesh, self._cancellation), self._stripe)
        mesh.close()


def fetch(
    kind: Kind, host: str, secret: bytes, sources: Sequence[StripeSource], wait: Callable[[int], None]
) -> list[torch.Tensor]:
    """The stripes of all sources, fetched at the same time, in memory of the device.

    ``wait(descriptor)`` returns when the descriptor can be read; what it raises gives the transfer up. Raises OSError
    where a donor has gone.
    """
    stripes = [torch.empty(source.octets, dtype=torch.uint8, device=kind.device) for source in sources]
    kind.finish()  # nothing else uses that memory any more
    cancellation = TransferCancellation()
    failures: list[BaseException] = []
    threads = [
        threading.Thread(
            target=_fetch_one, args=(kind, host, secret, source, stripe, cancellation, failures), daemon=True
        )
        for source, stripe in zip(sources, stripes, strict=True)
    ]
    ended, tell = socket.socketpair()
    for thread in threads:
        thread.start()
    waiter = threading.Thread(target=_tell_when_ended, args=(threads, tell, cancellation), daemon=True)
    waiter.start()
    try:
        wait(ended.fileno())
    except BaseException:
        cancellation.set()
        raise
    finally:
        waiter.join()
        ended.close()
    if failures:
        raise OSError(f"a donor's stripe did not arrive: {failures[0]}") from failures[0]
    return stripes


def _fetch_one(
    kind: Kind,
    host: str,
    secret: bytes,
    source: StripeSource,
    stripe: torch.Tensor,
    cancellation: TransferCancellation,
    failures: list[BaseException],
) -> None:
    def unreachable(rank: int) -> NoReturn:
        raise PeerLost(rank)

    addresses = [NOWHERE, Address(source.host, source.port)]
    try:
        with listen(host) as listener:  # nobody calls it: the newcomer does
            entrance = MeshListener(listener, secret)
            descriptor, check = cancellation.descriptor, cancellation.check
            mesh = entrance.form(source.generation, NEWCOMER, addresses, descriptor, check, unreachable)
            entrance.close()
        try:
            _carry(kind, PairLinks(mesh, cancellation), stripe)
        finally:
            mesh.close()
    except BaseException as error:  # whatever it was, the stripe is not whole
        failures.append(error)
        with suppress(OSError):
            cancellation.set()  # without one stripe the others are of no use


def _tell_when_ended(
    threads: Sequence[threading.Thread], tell: socket.socket, cancellation: TransferCancellation
) -> None:
    for thread in threads:
        thread.join()
    cancellation.close()
    tell.close()


def _carry(kind: Kind, links: PairLinks, stripe: torch.Tensor) -> None:
    """Send, or receive, a stripe in chunks. Raises TransferCancelled, PeerLost, TrainingError."""
    group = ProcessGroup(kind, links)
    try:
        for chunk in stripe.split(CHUNK_BYTES):
            group.send(chunk, NEWCOMER) if links.rank == DONOR else group.receive(chunk, DONOR)
        received = memoryview(bytearray(1))  # nobody leaves before all has arrived
        end = memoryview(b"e")
        links.exchange(*(([], [(NEWCOMER, received)]) if links.rank == DONOR else ([(DONOR, end)], [])))
    except BaseException:
        group.abandon()
        raise
    group.close()


def _try_again(rank: int) -> None:
    """A donor calls nobody."""
