"""The mesh: one authenticated TCP connection a pair of members, made anew for each generation.

A connection belongs to one generation, so nothing an excluded member sends can reach a later one. An exchange
can be given up at any moment: the control connection is watched together with the data, and the agent's word
arrives before any socket error would. Behind this interface c10d process groups (NCCL) can take over.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAGIC = b"HPM1"
NONCE_BYTES = 16
MAC_BYTES = 32
SOCKET_BUFFER_BYTES = 4 << 20
_HELLO = struct.Struct(f">4sQI{NONCE_BYTES}s")

Transfer = tuple[int, memoryview]
Check = Callable[[], None]


class PeerLost(Exception):
    """The connection to a peer broke; ``rank`` is its place in the generation."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"the connection to rank {rank} broke")
        self.rank = rank


class Address(NamedTuple):
    """Where a member listens."""

    host: str
    port: int


class Mesh:
    """Connected members of one generation."""

    def __init__(self, generation: int, rank: int, links: dict[int, socket.socket]) -> None:
        self.generation = generation
        self.rank = rank
        self.world_size = len(links) + 1
        self._links = links
        for link in links.values():
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer], control: int, check: Check) -> None:
        """Send and receive all buffers; both sides name them in the same order, so there are no frames.

        `check` is called when the descriptor `control` is readable and may raise to give the exchange up.
        Raises PeerLost when a connection breaks before everything has arrived.
        """
        outgoing, incoming = _queues(sends), _queues(receives)
        poller = select.poll()
        if control >= 0:
            poller.register(control, select.POLLIN)
        ranks = {}
        for rank, link in self._links.items():
            if mask := _mask(rank, outgoing, incoming):
                ranks[link.fileno()] = rank
                poller.register(link, mask)
        while ranks:
            for descriptor, events in poller.poll():
                if descriptor == control:
                    check()
                    continue
                rank = ranks[descriptor]
                link = self._links[rank]
                if events & select.POLLOUT:
                    _move(link.send, outgoing[rank], rank)
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    _move(link.recv_into, incoming.get(rank, _NOTHING), rank)
                if mask := _mask(rank, outgoing, incoming):
                    poller.modify(link, mask)
                else:
                    poller.unregister(link)
                    del ranks[descriptor]

    def close(self) -> None:
        """Close every connection."""
        for link in self._links.values():
            link.close()
        self._links = {}


_NOTHING: deque[memoryview] = deque()


def _queues(transfers: Iterable[Transfer]) -> dict[int, deque[memoryview]]:
    queues: dict[int, deque[memoryview]] = {}
    for rank, view in transfers:
        if len(view):
            queues.setdefault(rank, deque()).append(view)
    return queues


def _mask(rank: int, outgoing: dict[int, deque[memoryview]], incoming: dict[int, deque[memoryview]]) -> int:
    return (select.POLLOUT if outgoing.get(rank) else 0) | (select.POLLIN if incoming.get(rank) else 0)


def _move(operation: Callable[[memoryview], int], queue: deque[memoryview], rank: int) -> None:
    """Move bytes between a socket and the head of a queue until the socket would block."""
    try:
        while queue:
            count = operation(queue[0])
            if count == 0:
                raise PeerLost(rank)
            if count == len(queue[0]):
                queue.popleft()
            else:
                queue[0] = queue[0][count:]
    except BlockingIOError:
        pass
    except OSError as error:
        raise PeerLost(rank) from error


@dataclass
class _Greeting:
    """A connection that is being authenticated: mutual proof of the job's secret, bound to the generation."""

    sock: socket.socket
    initiator: bool
    peer: int = -1
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES))
    inbox: bytes = b""
    transcript: bytes = b""

    def needed(self) -> int:
        if self.initiator:
            return NONCE_BYTES + MAC_BYTES
        return MAC_BYTES if self.transcript else _HELLO.size


class Door:
    """A member's listening socket and the connections that came too early for the present generation."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._secret = secret
        self._early: list[tuple[int, socket.socket, bytes]] = []

    def form(
        self, generation: int, rank: int, addresses: Sequence[Address], control: int, check: Check,
        unreachable: Callable[[int], None],
    ) -> Mesh:  # fmt: skip
        """Connect to every member; the lower rank of a pair calls, the higher answers.

        `check` may raise to give up; `unreachable(rank)` is told of a peer that refuses, and the wait goes on.
        """
        links: dict[int, socket.socket] = {}
        greetings: dict[int, _Greeting] = {}
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        if control >= 0:
            poller.register(control, select.POLLIN)

        def greet(greeting: _Greeting) -> None:
            greetings[greeting.sock.fileno()] = greeting
            poller.register(greeting.sock, select.POLLIN)

        try:
            for peer in range(rank + 1, len(addresses)):
                try:
                    greet(self._call(generation, rank, peer, addresses[peer]))
                except OSError:
                    unreachable(peer)
            for greeting in self._take_early(generation, rank):
                greet(greeting)
            while len(links) < len(addresses) - 1:
                for descriptor, _ in poller.poll():
                    if descriptor == control:
                        check()
                    elif descriptor == self._listener.fileno():
                        greet(_Greeting(self._listener.accept()[0], initiator=False))
                    elif self._advance(greeting := greetings[descriptor], generation, rank):
                        poller.unregister(descriptor)
                        del greetings[descriptor]
                        if greeting.peer >= 0:
                            links[greeting.peer] = greeting.sock
        except BaseException:
            for sock in [*links.values(), *(g.sock for g in greetings.values())]:
                sock.close()
            raise
        for greeting in greetings.values():
            greeting.sock.close()
        return Mesh(generation, rank, links)

    def _call(self, generation: int, rank: int, peer: int, address: Address) -> _Greeting:
        sock = socket.create_connection(address, timeout=2.0)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        greeting = _Greeting(sock, initiator=True, peer=peer)
        greeting.transcript = _HELLO.pack(MAGIC, generation, rank, greeting.nonce)
        sock.sendall(greeting.transcript)
        return greeting

    def _take_early(self, generation: int, rank: int) -> Iterable[_Greeting]:
        early, self._early = self._early, []
        for theirs, sock, hello in early:
            if theirs > generation:
                self._early.append((theirs, sock, hello))
            elif theirs < generation:
                sock.close()
            else:
                greeting = _Greeting(sock, initiator=False)
                self._answer(greeting, hello)
                yield greeting

    def _advance(self, greeting: _Greeting, generation: int, rank: int) -> bool:
        """Read what arrived; True when this greeting is over (``peer`` >= 0 only if it succeeded)."""
        try:
            chunk = greeting.sock.recv(greeting.needed() - len(greeting.inbox))
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            return self._refuse(greeting)
        greeting.inbox += chunk
        if len(greeting.inbox) < greeting.needed():
            return False
        content, greeting.inbox = greeting.inbox, b""
        if greeting.initiator:
            greeting.transcript += content[:NONCE_BYTES]
            if not hmac.compare_digest(content[NONCE_BYTES:], self._mac(b"answer", greeting)):
                return self._refuse(greeting)
            greeting.sock.sendall(self._mac(b"call", greeting))
            return True
        if greeting.transcript:
            if hmac.compare_digest(content, self._mac(b"call", greeting)):
                return True
            return self._refuse(greeting)
        return self._hear_hello(greeting, content, generation, rank)

    def _hear_hello(self, greeting: _Greeting, hello: bytes, generation: int, rank: int) -> bool:
        magic, theirs, peer, _ = _HELLO.unpack(hello)
        if magic != MAGIC or theirs < generation or (theirs == generation and peer >= rank):
            return self._refuse(greeting)
        if theirs > generation:
            self._early.append((theirs, greeting.sock, hello))
            return True
        self._answer(greeting, hello)
        return False

    def _answer(self, greeting: _Greeting, hello: bytes) -> None:
        greeting.peer = _HELLO.unpack(hello)[2]
        greeting.transcript = hello + greeting.nonce
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            greeting.sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        greeting.sock.sendall(greeting.nonce + self._mac(b"answer", greeting))

    def _refuse(self, greeting: _Greeting) -> bool:
        greeting.peer = -1
        greeting.sock.close()
        return True

    def _mac(self, side: bytes, greeting: _Greeting) -> bytes:
        return hmac.digest(self._secret, side + greeting.transcript, "sha256")
