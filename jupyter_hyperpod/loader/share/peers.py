"""Passes chunks between ranks of different hosts over sockets, after both sides have proved the job's secret.

The client sends the number of a chunk. The answer is one byte, "not here yet" or "here", then the chunk, which the
kernel sends directly from one host's memory file and the client receives into its own.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from ..read.http_connection import set_timeout

MAGIC = b"HPF1"
NONCE_BYTES, MAC_BYTES = 16, 32
TIMEOUT_S = 2.0  # without a byte; then a peer is given up
CONNECT_TIMEOUT_S = 1.0
PROOF_S = 5.0  # for the whole proof
MOST_CALLERS, MOST_STRANGERS = 256, 128
ACCEPT_AGAIN_S = 0.05
_NUMBER = struct.Struct(">I")
_LATER, _HERE = b"\0", b"\1"

Answer = Literal["got", "later", "gone"]
Find = Callable[[int], tuple[int, int] | None]  # chunk -> its offset in the memory file and length, if it has arrived


class ChunkServer:
    """Serves chunks of one memory file to clients that know `secret`; `subject` names the model for both sides.

    Callers without a proof yet have a limited number of places: where all are taken, the oldest caller is dropped.
    """

    def __init__(self, host: str, secret: bytes, subject: bytes, descriptor: int, find: Find) -> None:
        self._listener = socket.create_server((host, 0), backlog=MOST_CALLERS)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._secret, self._subject = secret, subject
        self._descriptor = descriptor
        self._find = find
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._callers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="fanout-door", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._strangers, *self._callers]
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                caller, _ = self._listener.accept()
            except OSError:  # the caller has gone, or no descriptor is left: callers without a proof hold some
                time.sleep(0.0 if self._closed else ACCEPT_AGAIN_S)
                continue
            try:
                self._let_in(caller)
            except (OSError, RuntimeError):  # neither a descriptor nor a thread is left
                caller.close()

    def _let_in(self, caller: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("nobody is served any more")
            if len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            descriptor = os.dup(self._descriptor)  # the original's number may be reused before the copy is
            self._strangers[caller] = None
        try:
            threading.Thread(target=self._attend, args=(caller, descriptor), daemon=True).start()
        except RuntimeError:
            os.close(descriptor)
            with self._lock:
                self._strangers.pop(caller, None)
            raise

    def _attend(self, caller: socket.socket, descriptor: int) -> None:
        try:
            with suppress(OSError), open(descriptor, "rb"):
                set_timeout(caller, TIMEOUT_S)
                if prove(caller, self._secret, self._subject, calls=False) and self._welcome(caller):
                    self._serve(caller, descriptor)
        finally:
            with self._lock:  # before closing, so that no other thread shuts down a reused descriptor number
                self._strangers.pop(caller, None)
                self._callers.discard(caller)
                caller.close()

    def _welcome(self, caller: socket.socket) -> bool:
        """Give a caller that has proved the secret a permanent place; False where all are taken."""
        with self._lock:
            welcome = caller in self._strangers and not self._closed and len(self._callers) < MOST_CALLERS
            self._strangers.pop(caller, None)
            if welcome:
                self._callers.add(caller)
        return welcome

    def _serve(self, caller: socket.socket, descriptor: int) -> None:
        while len(asked := caller.recv(_NUMBER.size, socket.MSG_WAITALL)) == _NUMBER.size:
            set_timeout(caller, TIMEOUT_S)
            if (found := self._find(*_NUMBER.unpack(asked))) is None:
                caller.sendall(_LATER)
            else:
                caller.sendall(_HERE)
                _send_file(caller, descriptor, *found)
            set_timeout(caller, 0)  # a served client may pause before its next request


class Client:
    """One thread's connection to one server."""

    def __init__(self, address: tuple[str, int], secret: bytes, subject: bytes) -> None:
        """Raises OSError where no peer answers, or the peer does not know the secret."""
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        try:
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_timeout(self._socket, TIMEOUT_S)
            if not prove(self._socket, secret, subject, calls=True):
                raise PermissionError(f"the peer at {address[0]}:{address[1]} does not know the job's secret")
        except BaseException:
            self._socket.close()
            raise

    def get(self, index: int, view: memoryview) -> Answer:
        """Receive a chunk into `view`."""
        try:
            self._socket.sendall(_NUMBER.pack(index))
            answer = self._socket.recv(1)
            if answer != _HERE:
                return "later" if answer == _LATER else "gone"
            got = 0
            while got < len(view):
                count = self._socket.recv_into(view[got:], 0, socket.MSG_WAITALL)
                if not count:
                    return "gone"
                got += count
        except OSError:
            return "gone"
        return "got"

    def close(self) -> None:
        self._socket.close()


def prove(sock: socket.socket, secret: bytes, subject: bytes, *, calls: bool) -> bool:
    """Exchange proofs of the secret, bound to nonces of both sides and to `subject`; True if theirs is right.

    The server proves itself first, and only to a caller that then has to prove itself, too. Raises OSError.
    """
    by_s = time.monotonic() + PROOF_S
    nonce = os.urandom(NONCE_BYTES)
    hello = MAGIC + nonce
    if calls:
        sock.sendall(hello)
        answer = _receive(sock, len(hello) + MAC_BYTES, by_s)
        both = nonce + answer[len(MAGIC) : len(hello)] + subject
        if answer[: len(MAGIC)] != MAGIC or not hmac.compare_digest(answer[len(hello) :], _mac(secret, b"b", both)):
            return False
        sock.sendall(_mac(secret, b"a", both))
        return True
    asked = _receive(sock, len(hello), by_s)
    both = asked[len(MAGIC) :] + nonce + subject
    if asked[: len(MAGIC)] != MAGIC:
        return False
    sock.sendall(hello + _mac(secret, b"b", both))
    return hmac.compare_digest(_receive(sock, MAC_BYTES, by_s), _mac(secret, b"a", both))


def _mac(secret: bytes, side: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, b"fanout " + side + content, "sha256")


def _receive(sock: socket.socket, length: int, by_s: float) -> bytes:
    content = bytearray()
    while len(content) < length:
        if time.monotonic() > by_s:
            raise TimeoutError("the other side takes too long to prove the secret")
        piece = sock.recv(length - len(content))
        if not piece:
            raise ConnectionResetError("the other side hung up")
        content += piece
    return bytes(content)


def _send_file(sock: socket.socket, descriptor: int, offset: int, length: int) -> None:
    while length:
        sent = os.sendfile(sock.fileno(), descriptor, offset, length)
        if not sent:
            raise ConnectionResetError("nothing more can be sent")
        offset, length = offset + sent, length - sent
