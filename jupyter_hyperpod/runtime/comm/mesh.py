"""The mesh: one authenticated TCP connection per pair of members, new in each generation.

A connection belongs to one generation, so nothing an excluded member sends can reach a later one. An exchange
can be cancelled at any moment: the control connection is watched together with the data, and the agent's message
arrives before any socket error.
"""

from __future__ import annotations

import hmac
import math
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...core.errors import TrainingError
from ...system.addresses import listen_for_words
from ...system.encryption import ENCRYPT_VARIABLE, go_on, must_encrypt
from .handshake import ENCRYPTED, HANDSHAKE_S, HELLO, MAGIC, NONCE_BYTES, Handshake, KeyRenewal, TlsFailures
from .link_queues import NOTHING, mask_of, move, queues, take
from .link_queues import PeerLost as PeerLost
from .link_queues import Transfer as Transfer

SOCKET_BUFFER_BYTES = 4 << 20
CONNECT_TIMEOUT_S = 0.5
RETRY_S = 0.01
CALLERS_KEPT = 256
BACKLOG = 4096  # callers wait there while a member trains: strangers must not fill it
CHECK_S = 0.5

Check = Callable[[], None]
Exchange = Callable[[list[Transfer], list[Transfer]], None]


class Address(NamedTuple):
    """Where a member listens."""

    host: str
    port: int


def listen(host: str) -> socket.socket:
    """Listen for members on a free port. Raises OSError."""
    return listen_for_words(host, 0, BACKLOG)


class Mesh:
    """Connected members of one generation."""

    def __init__(self, generation: int, rank: int, links: dict[int, socket.socket], renewal: KeyRenewal) -> None:
        self.generation = generation
        self.rank = rank
        self.world_size = len(links) + 1
        self.waited_s = 0.0  # in exchanges, until every peer had sent something: the slowest has come by then
        self._links = links
        self._renewal = renewal
        for link in links.values():
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer], control: int, check: Check) -> None:
        """Send and receive all buffers; both sides use the same order, so there are no frames.

        `check` is called when the descriptor `control` is readable and may raise to cancel the exchange.
        Raises PeerLost when a connection breaks before everything has arrived.
        """
        outgoing, incoming, began_s = queues(sends), queues(receives), time.monotonic()
        self._renewal.count(outgoing, incoming)
        poller = select.poll()
        if control >= 0:
            poller.register(control, select.POLLIN)
        ranks = {}
        for rank, link in self._links.items():
            if isinstance(link, ssl.SSLSocket) and incoming.get(rank):
                take(link, incoming[rank], rank)  # a part of a record waits in the process, unseen by poll
            if mask := mask_of(rank, outgoing, incoming):
                ranks[link.fileno()] = rank
                poller.register(link, mask)
        silent = {rank for rank, queue in incoming.items() if queue}
        while ranks:
            for descriptor, events in poller.poll():
                if descriptor == control:
                    check()
                    continue
                rank = ranks[descriptor]
                link = self._links[rank]
                if events & select.POLLOUT:
                    move(link.send, outgoing[rank], rank)
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    take(link, incoming.get(rank, NOTHING), rank)
                    if silent and not (silent := silent - {rank}):
                        self.waited_s += time.monotonic() - began_s
                if mask := mask_of(rank, outgoing, incoming):
                    poller.modify(link, mask)
                else:
                    poller.unregister(link)
                    del ranks[descriptor]

    def wait_for(self, descriptor: int, timeout_s: float | None, control: int, check: Check) -> bool:
        """Wait until `descriptor` can be read; False after the timeout. `check` as in `exchange`.

        Raises PeerLost when a peer has gone before that. What peers send meanwhile stays for a later exchange.
        """
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if control >= 0:
            poller.register(control, select.POLLIN)
        ranks = {link.fileno(): rank for rank, link in self._links.items()}
        for link in ranks:
            poller.register(link, select.POLLRDHUP)
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            found = {number for number, _ in poller.poll(None if timeout_s is None else 1000 * left_s)}
            if descriptor in found:
                return True
            if control in found:
                check()
            if gone := found & ranks.keys():
                raise PeerLost(ranks[gone.pop()])
        return False

    def renew_keys(self, control: int, check: Check) -> None:
        """Give connections that have carried much new keys. `check` as in `exchange`. Raises PeerLost.

        All members call this between the same two exchanges, where nothing is under way.
        """
        for peer in self._renewal.due():
            self._links[peer] = bare = socket.socket(fileno=self._links[peer].detach())
            bare.setblocking(False)
            try:
                link = self._links[peer] = self._renewal.begin(peer, bare)
                while (wanted := go_on(link)) is not None:
                    poller = select.poll()
                    poller.register(link, wanted)
                    if control >= 0:
                        poller.register(control, select.POLLIN)
                    if control in {descriptor for descriptor, _ in poller.poll()}:
                        check()
            except OSError as error:
                raise PeerLost(peer) from error

    def close(self) -> None:
        """Close every connection."""
        for link in self._links.values():
            link.close()
        self._links = {}


def all_gather(exchange: Exchange, rank: int, world_size: int, own: bytes) -> list[bytes]:
    """Gather the bytes of every member, by rank; all have the same length. Raises the errors of ``exchange``."""
    shown = {peer: memoryview(bytearray(len(own))) for peer in range(world_size) if peer != rank}
    exchange([(peer, memoryview(own)) for peer in shown], list(shown.items()))
    return [bytes(shown[peer]) if peer in shown else own for peer in range(world_size)]


class MeshListener:
    """A member's listening socket, and callers that are early for a later generation."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._secret = secret
        self._callers: list[Handshake] = []

    def form(
        self, generation: int, rank: int, addresses: Sequence[Address], control: int, check: Check,
        unreachable: Callable[[int], None], warn: Callable[[str], None] = lambda text: None,
    ) -> Mesh:  # fmt: skip
        """Connect to every member; the lower rank of a pair calls, the higher answers.

        `check` is called when the descriptor `control` is readable and may raise to give up; `unreachable(rank)` is
        called for a peer that refuses, and the connection is retried; `warn(text)` where TLS fails with a peer.
        Raises TrainingError where members have to encrypt and this host cannot, or a peer does not.
        """
        forming = _Forming(self._listener, self._secret, generation, rank, addresses, unreachable, warn)
        callers, self._callers = self._callers, []
        try:
            return forming.run(callers, control, check)
        finally:
            self._callers = forming.close()

    def close(self) -> None:
        """Close waiting connections; the listening socket stays with its owner."""
        for handshake in self._callers:
            handshake.sock.close()
        self._callers = []


class _Forming:
    """One attempt to connect the members of one generation."""

    def __init__(
        self, listener: socket.socket, secret: bytes, generation: int, rank: int, addresses: Sequence[Address],
        unreachable: Callable[[int], None], warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._listener = listener
        self._secret = secret
        self._generation = generation
        self._rank = rank
        self._addresses = addresses
        self._unreachable = unreachable
        self._failures = TlsFailures(warn)
        self._poller = select.poll()
        self._links: dict[int, socket.socket] = {}
        self._transcripts: dict[int, bytes] = {}  # of those that are encrypted
        self._handshakes: dict[int, Handshake] = {}
        self._later: list[Handshake] = []
        self._to_call = set(range(rank + 1, len(addresses)))
        self._next_call_s = 0.0
        self._next_check_s = 0.0
        self._formed = False

    def run(self, callers: Iterable[Handshake], control: int, check: Check) -> Mesh:
        """Greet until every member is connected."""
        self._poller.register(self._listener, select.POLLIN)
        if control >= 0:
            self._poller.register(control, select.POLLIN)
        for handshake in callers:
            self._begin(handshake)
        while len(self._links) < len(self._addresses) - 1:
            if self._to_call and time.monotonic() >= self._next_call_s:
                self._next_call_s = time.monotonic() + RETRY_S
                for peer in sorted(self._to_call):
                    self._call(peer)
            self._refuse_late()
            for descriptor, _ in self._poller.poll(1000 * (RETRY_S if self._to_call else CHECK_S)):
                if descriptor == control:
                    check()
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._handshakes:
                    self._advance(self._handshakes[descriptor])
        self._formed = True
        renewal = KeyRenewal(self._secret, self._rank, self._transcripts)
        return Mesh(self._generation, self._rank, self._links, renewal)

    def close(self) -> list[Handshake]:
        """Close useless connections; return callers that may belong to a later generation."""
        since_s = time.monotonic() - HANDSHAKE_S
        young = [g for g in self._handshakes.values() if g.unanswered and g.since_s > since_s]
        callers = self._later + young
        for handshake in self._handshakes.values():
            if handshake not in young:
                handshake.sock.close()
        for link in () if self._formed else self._links.values():
            link.close()
        for handshake in callers[:-CALLERS_KEPT]:
            handshake.sock.close()
        return callers[-CALLERS_KEPT:]

    def _begin(self, handshake: Handshake) -> None:
        handshake.since_s = time.monotonic()
        handshake.sock.setblocking(False)
        self._handshakes[handshake.descriptor] = handshake
        self._poller.register(handshake.sock, select.POLLIN)
        if len(handshake.inbox) >= handshake.needed:
            self._handle(handshake)

    def _accept(self) -> None:
        try:
            self._begin(Handshake(self._listener.accept()[0], initiator=False))
        except OSError:
            return  # the caller has already gone
        callers = [handshake for handshake in self._handshakes.values() if not handshake.initiator]
        if len(callers) > max(CALLERS_KEPT, 2 * len(self._addresses)):
            self._refuse(callers[0])  # all places are taken; an early member has proved itself by now
        if len(self._later) > max(CALLERS_KEPT, len(self._addresses)):
            self._later.pop(0).sock.close()

    def _refuse_late(self) -> None:
        """Close callers that have not proved the secret in time, and peers that have but do not encrypt."""
        if (now_s := time.monotonic()) < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_S
        for handshake in [g for g in self._handshakes.values() if g.late(now_s)]:
            if handshake.unread:  # this side is late, too
                self._advance(handshake)
            if self._handshakes.get(handshake.descriptor) is handshake and handshake.late(now_s):
                if handshake.secured:
                    self._failures.note(handshake.peer, TimeoutError(f"it says nothing for {HANDSHAKE_S:g} s"))
                self._refuse(handshake)

    def _call(self, peer: int) -> None:
        try:
            sock = socket.create_connection(self._addresses[peer], timeout=CONNECT_TIMEOUT_S)
            magic = ENCRYPTED if must_encrypt(sock) else MAGIC
        except OSError:
            self._unreachable(peer)
            return
        self._to_call.discard(peer)
        handshake = Handshake(sock, initiator=True, peer=peer)
        handshake.transcript = HELLO.pack(magic, self._generation, self._rank, handshake.nonce)
        self._begin(handshake)
        self._send(handshake, handshake.transcript)

    def _send(self, handshake: Handshake, message: bytes) -> bool:
        """Send a message. It is small and the socket new, so a partial send means that the peer has gone."""
        try:
            if handshake.sock.send(message) == len(message):
                return True
        except OSError:
            pass
        self._refuse(handshake)
        return False

    def _advance(self, handshake: Handshake) -> None:
        if handshake.secured:
            self._encrypt(handshake)
            return
        try:
            chunk = handshake.sock.recv(handshake.needed - len(handshake.inbox))
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._refuse(handshake)
            return
        handshake.inbox += chunk
        if len(handshake.inbox) >= handshake.needed:
            self._handle(handshake)

    def _handle(self, handshake: Handshake) -> None:
        """Handle a complete message of the other side."""
        if handshake.unanswered:
            self._handle_hello(handshake)
            return
        content, handshake.inbox = handshake.inbox, b""
        if not handshake.initiator:
            self._connected(handshake, hmac.compare_digest(content, self._mac(b"call", handshake)))
            return
        handshake.transcript += content[:NONCE_BYTES]
        proven = hmac.compare_digest(content[NONCE_BYTES:], self._mac(b"answer", handshake))
        if not proven or self._send(handshake, self._mac(b"call", handshake)):
            self._connected(handshake, proven)

    def _handle_hello(self, handshake: Handshake) -> None:
        magic, theirs, peer, _ = HELLO.unpack(handshake.inbox)
        if magic in (MAGIC, ENCRYPTED) and theirs > self._generation:
            self._later.append(self._drop(handshake))
        elif magic not in (MAGIC, ENCRYPTED) or theirs < self._generation or peer >= self._rank:
            self._refuse(handshake)
        else:
            handshake.peer = peer
            handshake.transcript, handshake.inbox = handshake.inbox + handshake.nonce, b""
            handshake.since_s = time.monotonic()
            self._send(handshake, handshake.nonce + self._mac(b"answer", handshake))

    def _connected(self, handshake: Handshake, proven: bool) -> None:
        if not proven or handshake.peer in self._links:
            self._refuse(handshake)
        elif handshake.transcript.startswith(ENCRYPTED):
            self._encrypt(handshake)
        elif handshake.too_bare:
            raise TrainingError(
                f"rank {handshake.peer} does not encrypt a connection that this member has to; "
                f"set {ENCRYPT_VARIABLE} to the same value on all nodes"
            )
        else:
            self._add(handshake)

    def _encrypt(self, handshake: Handshake) -> None:
        """Begin the handshake of TLS, or go on with it: each side has proved the secret to the other."""
        try:
            wanted = handshake.encrypt(self._secret)
        except OSError as error:
            self._failures.note(handshake.peer, error)
            self._refuse(handshake)
            return
        if wanted is None:
            self._add(handshake)
        else:
            self._poller.modify(handshake.descriptor, wanted)

    def _add(self, handshake: Handshake) -> None:
        if handshake.peer in self._links:
            self._refuse(handshake)
            return
        sock = self._links[handshake.peer] = self._drop(handshake).sock
        if handshake.secured:
            self._transcripts[handshake.peer] = handshake.transcript
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # only now: the kernel would keep as much of a stranger's
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)

    def _refuse(self, handshake: Handshake) -> None:
        """Close; retry a peer that we called, since it may be between two generations."""
        self._drop(handshake).sock.close()
        if handshake.initiator and handshake.peer not in self._links:
            self._to_call.add(handshake.peer)

    def _drop(self, handshake: Handshake) -> Handshake:
        self._poller.unregister(handshake.descriptor)
        del self._handshakes[handshake.descriptor]
        return handshake

    def _mac(self, side: bytes, handshake: Handshake) -> bytes:
        return hmac.digest(self._secret, side + handshake.transcript, "sha256")
