"""Passes chunks between ranks of different hosts over sockets, after both sides have proved the job's secret.

The client sends the number of a chunk. The answer is one byte, "not here yet" or "here", then the chunk, which the
client receives into its memory file. On a bare connection the kernel sends it directly from the server's memory file.
"""

from __future__ import annotations

import hmac
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from ...core.errors import TrainingError
from ...system.addresses import listen_for_words
from ...system.encryption import RENEW_BYTES, encrypted, encryption_mode, must_encrypt
from ..read.http_connection import set_timeout

MAGIC, ENCRYPTED = b"HPF1", b"HPF2"  # of a connection that stays bare, and of one that is encrypted after the proofs
NONCE_BYTES, MAC_BYTES = 16, 32
TIMEOUT_S = 2.0  # without a byte; then a peer is given up
CONNECT_TIMEOUT_S = 1.0
PROOF_S = 5.0  # for the whole proof
MOST_CALLERS, MOST_STRANGERS = 256, 128
ACCEPT_AGAIN_S = 0.05
PIECE_BYTES = 1 << 18  # encrypted in one call
_NUMBER = struct.Struct(">I")
_LATER, _HERE = b"\0", b"\1"

Answer = Literal["got", "later", "gone"]
Find = Callable[[int], tuple[int, int] | None]  # chunk -> its offset in the memory file and length, if it has arrived


class ChunkServer:
    """Serves chunks of one memory file to clients that know `secret`; `subject` names the model for both sides.

    Callers without a proof yet have a limited number of places: where all are taken, the oldest caller is dropped.
    """

    def __init__(self, host: str, secret: bytes, subject: bytes, descriptor: int, find: Find) -> None:
        """Raises OSError, and TrainingError for a mode of encryption that does not exist."""
        encryption_mode()
        self._listener = listen_for_words(host, 0, MOST_CALLERS)
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
            _hang_up(one)
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
                _hang_up(oldest)
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
            with (
                suppress(OSError, TrainingError),
                open(descriptor, "rb"),
            ):  # a member that cannot encrypt says it
                set_timeout(caller, TIMEOUT_S)
                proven = prove(caller, self._secret, self._subject, calls=False)
                if proven and self._welcome(caller):
                    if proven.startswith(ENCRYPTED):
                        caller = self._encrypt(caller, proven)
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

    def _encrypt(self, caller: socket.socket, proven: bytes) -> ssl.SSLSocket:
        """Put a welcome caller under TLS; its place is that of the new socket, which has its descriptor."""
        with self._lock:
            self._callers.discard(caller)
            if self._closed:
                raise ConnectionAbortedError("nobody is served any more")
            set_timeout(caller, 0)
            secured = encrypted(caller, self._secret, proven, calls=False)
            self._callers.add(secured)
        try:
            secured.settimeout(TIMEOUT_S)
            secured.do_handshake()
        except BaseException:
            with self._lock:
                self._callers.discard(secured)
                secured.close()
            raise
        return secured

    def _serve(self, caller: socket.socket, descriptor: int) -> None:
        asked = memoryview(bytearray(_NUMBER.size))
        while _fill(caller, asked):
            _limit(caller, TIMEOUT_S)
            if (found := self._find(*_NUMBER.unpack(asked))) is None:
                caller.sendall(_LATER)
            else:
                caller.sendall(_HERE)
                _send_file(caller, descriptor, *found)
            _limit(caller, 0)  # a served client may pause before its next request


class Client:
    """One thread's connection to one server."""

    def __init__(self, address: tuple[str, int], secret: bytes, subject: bytes) -> None:
        """Raises OSError where no peer answers or knows the secret, TrainingError where this host cannot encrypt."""
        self._carried = 0  # bytes of chunks
        self._lock = threading.Lock()  # held by a `get`
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        try:
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_timeout(self._socket, TIMEOUT_S)
            if not (proven := prove(self._socket, secret, subject, calls=True)):
                raise PermissionError(f"the peer at {address[0]}:{address[1]} does not know the job's secret")
            if proven.startswith(ENCRYPTED):
                set_timeout(self._socket, 0)
                self._socket = secured = encrypted(self._socket, secret, proven, calls=True)
                secured.settimeout(TIMEOUT_S)
                secured.do_handshake()
        except BaseException:
            self._socket.close()
            raise

    @property
    def worn(self) -> bool:
        """Whether the keys of this connection have protected enough: another one has new keys."""
        return isinstance(self._socket, ssl.SSLSocket) and self._carried >= RENEW_BYTES

    def get(self, index: int, view: memoryview) -> Answer:
        """Receive a chunk into `view`."""
        with self._lock:
            try:
                self._socket.sendall(_NUMBER.pack(index))
                answer = self._socket.recv(1)
                if answer != _HERE:
                    return "later" if answer == _LATER else "gone"
                self._carried += len(view)
                return "got" if _fill(self._socket, view) else "gone"
            except OSError:
                return "gone"

    def close(self) -> None:
        """End the connection; a `get` of another thread ends before."""
        _hang_up(self._socket)
        with self._lock:
            self._socket.close()


def prove(sock: socket.socket, secret: bytes, subject: bytes, *, calls: bool) -> bytes:
    """Exchange proofs of the secret, bound to nonces of both sides and to `subject`.

    The server proves itself first, and only to a caller that then has to prove itself, too. Returns all that was
    proved, b"" where their proof is wrong: it begins with `ENCRYPTED` where the connection goes on so, and else with
    `MAGIC`, which a server that has to encrypt refuses. Raises OSError.
    """
    by_s = time.monotonic() + PROOF_S
    nonce = os.urandom(NONCE_BYTES)
    if calls:
        hello = (ENCRYPTED if must_encrypt(sock) else MAGIC) + nonce
        sock.sendall(hello)
        answer = _receive(sock, NONCE_BYTES + MAC_BYTES, by_s)
        both = hello + answer[:NONCE_BYTES] + subject
        if not hmac.compare_digest(answer[NONCE_BYTES:], _mac(secret, b"b", both)):
            return b""
        sock.sendall(_mac(secret, b"a", both))
        return both
    asked = _receive(sock, len(MAGIC) + NONCE_BYTES, by_s)
    both = asked + nonce + subject
    if not asked.startswith(ENCRYPTED) and (not asked.startswith(MAGIC) or must_encrypt(sock)):
        return b""
    sock.sendall(nonce + _mac(secret, b"b", both))
    return both if hmac.compare_digest(_receive(sock, MAC_BYTES, by_s), _mac(secret, b"a", both)) else b""


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


def _hang_up(sock: socket.socket) -> None:
    """Let whoever uses it stop. `SSLSocket.shutdown` and `close` would let another thread go on in the clear."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _limit(sock: socket.socket, seconds: float) -> None:
    """End calls that wait for longer (0: never); TLS would repeat a call that the kernel has ended."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(seconds or None)
    else:
        set_timeout(sock, seconds)


def _fill(sock: socket.socket, view: memoryview) -> bool:
    """Receive into all of `view`; False where the other side hangs up before. Raises OSError."""
    at_once = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL  # TLS gives one record at a time
    while view:
        if not (count := sock.recv_into(view, 0, at_once)):
            return False
        view = view[count:]
    return True


def _send_file(sock: socket.socket, descriptor: int, offset: int, length: int) -> None:
    while length:
        if isinstance(sock, ssl.SSLSocket):
            sock.sendall(piece := os.pread(descriptor, min(length, PIECE_BYTES), offset))
            sent = len(piece)
        else:
            sent = os.sendfile(sock.fileno(), descriptor, offset, length)
        if not sent:
            raise ConnectionResetError("nothing more can be sent")
        offset, length = offset + sent, length - sent
