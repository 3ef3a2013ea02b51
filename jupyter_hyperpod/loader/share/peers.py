"""Chunks from rank to rank of different hosts: a socket, both sides prove the job's secret, raw bytes.

Who asks sends the number of a chunk; the answer is one byte, "not here yet" or "here", then the chunk itself, sent by
the kernel out of the memory file and received into that of the other host.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

MAGIC = b"HPF1"
NONCE_BYTES, MAC_BYTES = 16, 32
TIMEOUT_S = 2.0  # without a byte, after which a peer is given up
CONNECT_TIMEOUT_S = 1.0
PROOF_S = 5.0  # for the whole proof, however slowly its bytes come
MOST_CALLERS, MOST_STRANGERS = 256, 128
ACCEPT_AGAIN_S = 0.05
LOOPBACK, AUTOMATIC = "127.0.0.1", "auto"
_NUMBER = struct.Struct(">I")
_TIMEVAL = struct.Struct("ll")
_LATER, _HERE = b"\0", b"\1"

Answer = Literal["got", "later", "gone"]
Find = Callable[[int], tuple[int, int] | None]  # of a chunk: its offset in the memory file and length, if it is there


class Server:
    """Gives chunks of one memory file to who knows `secret`; `subject` names the model that both sides mean.

    Callers that have not proved the secret yet have places of their own: where all are taken, who came first has to go.
    """

    def __init__(self, host: str, secret: bytes, subject: bytes, descriptor: int, find: Find) -> None:
        self._listener = socket.create_server((host, 0), backlog=MOST_CALLERS)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._secret, self._subject = secret, subject
        self._descriptor = descriptor
        self._find = find
        self._strangers: dict[socket.socket, None] = {}  # in the order of their calls
        self._callers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="fanout-door", daemon=True).start()

    def close(self) -> None:
        """Hang up on everybody."""
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
            except OSError:  # it has hung up again, or no descriptor is left: those who prove nothing hold some
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
            descriptor = os.dup(self._descriptor)  # its number may belong to another file by the time it is used
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
                _set_timeout(caller)
                if prove(caller, self._secret, self._subject, calls=False) and self._welcome(caller):
                    self._serve(caller, descriptor)
        finally:
            with self._lock:  # before it is closed: nobody else hangs up on a number that has a new owner
                self._strangers.pop(caller, None)
                self._callers.discard(caller)
                caller.close()

    def _welcome(self, caller: socket.socket) -> bool:
        """Who has proved the secret keeps its place for as long as it likes; False where all are taken."""
        with self._lock:
            welcome = caller in self._strangers and not self._closed and len(self._callers) < MOST_CALLERS
            self._strangers.pop(caller, None)
            if welcome:
                self._callers.add(caller)
        return welcome

    def _serve(self, caller: socket.socket, descriptor: int) -> None:
        while len(asked := caller.recv(_NUMBER.size, socket.MSG_WAITALL)) == _NUMBER.size:
            _set_timeout(caller)
            if (found := self._find(*_NUMBER.unpack(asked))) is None:
                caller.sendall(_LATER)
            else:
                caller.sendall(_HERE)
                _send_file(caller, descriptor, *found)
            _set_timeout(caller, 0)  # who is served may take its time before it asks again


class Client:
    """One thread's connection to one server."""

    def __init__(self, address: tuple[str, int], secret: bytes, subject: bytes) -> None:
        """Raises OSError where nobody answers, or somebody who does not know the secret."""
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        try:
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _set_timeout(self._socket)
            if not prove(self._socket, secret, subject, calls=True):
                raise PermissionError(f"who listens at {address[0]}:{address[1]} does not know the job's secret")
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
        """Hang up."""
        self._socket.close()


def own_address(asked: str, endpoint: Path) -> str:
    """Return where to listen: `asked`, or for "auto" the address from which this node reaches who is in `endpoint`.

    Raises OSError where that is not known.
    """
    if asked != AUTOMATIC:
        return asked
    try:
        found = json.loads(endpoint.read_text())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting it sends nothing
            probe.connect((found["host"], found["port"]))
            return str(probe.getsockname()[0])
    except (ValueError, LookupError, TypeError) as error:
        raise OSError(f"{endpoint} names no coordinator: {error}") from None


def prove(sock: socket.socket, secret: bytes, subject: bytes, *, calls: bool) -> bool:
    """Exchange proofs of the secret, bound to fresh numbers of both sides and to `subject`; True if theirs is right.

    Who is called proves itself first, so that nobody learns anything by calling. Raises OSError.
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


def _set_timeout(sock: socket.socket, seconds: float = TIMEOUT_S) -> None:
    """Let the kernel end calls that wait for longer, 0: never; the socket stays a blocking one."""
    timeout = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
