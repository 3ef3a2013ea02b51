"""Members of one generation as threads of a test, each with a door of its own on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from jupyter_hyperpod.runtime.comm.mesh import Address, Mesh, MeshListener

SECRET = b"s" * 32
JOIN_TIMEOUT_S = 60.0
BOUND_S = 50.0


def nothing(*_: Any) -> None:
    """A check that never calls, a peer that is never missed."""


@contextmanager
def doors(count: int, secret: bytes = SECRET) -> Iterator[tuple[list[MeshListener], list[Address]]]:
    """Doors and where they are; shut at the end."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = [Address(*listener.getsockname()) for listener in listeners]
        entrances = [MeshListener(listener, secret) for listener in listeners]
        for door in entrances:
            stack.callback(door.close)
        yield entrances, addresses


def together(count: int, life: Callable[[int], Any]) -> list[Any]:
    """Run ``life(rank)`` for every rank at once and return what each returned; an exception in one is raised here."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = life(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a member hangs"
    return results


def meshes(count: int, generation: int = 1) -> list[Mesh]:
    """Connected meshes, one a rank."""
    with doors(count) as (entrances, addresses):
        return together(count, lambda rank: form(entrances[rank], generation, rank, addresses))


def form(door: MeshListener, generation: int, rank: int, addresses: Sequence[Address]) -> Mesh:
    """Form without a coordinator."""
    return door.form(generation, rank, addresses, -1, nothing, nothing)


class Relay:
    """Somebody on the path of a connection, who keeps all bytes and can change what is sent one way, once.

    `flip_at`: of all bytes ``changed`` way, the one of which a bit is flipped. `repeat_at`: what arrives with this
    byte is sent twice. ``host``: the address to listen on.
    """

    def __init__(
        self, target: Address, flip_at: int | None = None, host: str = "127.0.0.1", changed: str = "there"
    ) -> None:
        self.seen = {"there": bytearray(), "back": bytearray()}
        self._target, self.flip_at = target, flip_at
        self.repeat_at: int | None = None
        self._changed = changed
        self._listener = socket.create_server((host, 0))
        self.address = Address(*self._listener.getsockname()[:2])
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                callee = self._reach(caller)
                callee.settimeout(None)
                self._socks += [caller, callee]
                for way, source, sink in (("there", caller, callee), ("back", callee, caller)):
                    self._threads.append(threading.Thread(target=self._carry, args=(way, source, sink), daemon=True))
                    self._threads[-1].start()

    def _reach(self, caller: socket.socket) -> socket.socket:
        return socket.create_connection(self._target, BOUND_S)

    def _carry(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := bytearray(source.recv(1 << 16)):
                before = len(self.seen[way])
                self.seen[way] += chunk
                reached = range(before, before + len(chunk)) if way == self._changed else range(0)
                if self.flip_at is not None and self.flip_at in reached:
                    chunk[self.flip_at - before] ^= 1
                sink.sendall(chunk)
                if self.repeat_at is not None and self.repeat_at in reached:
                    sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(BOUND_S)
        for sock in self._socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(BOUND_S)
        for sock in self._socks:
            sock.close()


@contextmanager
def relayed(flip_at: int | None = None) -> Iterator[tuple[list[Mesh], Relay]]:
    """Two members, and somebody on the path between them."""
    with doors(2) as (entrances, addresses):
        relay = Relay(addresses[1], flip_at)
        meshes: list[Mesh] = []
        try:
            path = [addresses[0], relay.address]
            meshes = together(2, lambda rank: form(entrances[rank], 1, rank, path))
            yield meshes, relay
        finally:
            for mesh in meshes:
                mesh.close()
            relay.close()


def say(meshes: Sequence[Mesh], sent: bytes) -> bytearray:
    """Rank 0 sends, rank 1 gets; both answer. Raises PeerLost."""
    room = bytearray(len(sent))

    def one(rank: int) -> None:
        own = memoryview(sent if rank == 0 else bytes(len(sent)))
        into = memoryview(room if rank == 1 else bytearray(len(sent)))
        try:
            meshes[rank].exchange([(1 - rank, own)], [(1 - rank, into)], -1, nothing)
        finally:
            meshes[rank].close()  # so that the other side hears of it

    together(2, one)
    return room
