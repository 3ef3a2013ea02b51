"""Control connections: JSON frames on a non-blocking socket, authenticated by the job's secret.

Each side first sends a fresh nonce; both nonces and the secret give two keys, one per direction. Every frame is
``length(4) || HMAC-SHA256(key, sequence(8) || payload)[:16] || payload``, so a stranger, a replay, a reflection and
a frame out of order are all refused. Between an agent and the worker it forked (a socket pair) there is no stranger
and no secret: the tag is left out.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..core.errors import ProtocolError
from .payload_by_rank import HELD, PackedReader, is_packed

MAGIC = b"HPOD1"
NONCE_BYTES = 16
TAG_BYTES = 16
FRAME_LIMIT_BYTES = 64 << 20
STRANGER_LIMIT_BYTES = 4 << 20  # of a frame from a side that has not proved itself yet
READ_LIMIT_BYTES = 8 << 20  # per `receive`, so that one connection cannot keep a loop from its other work
HANDSHAKE_TIMEOUT_S = 5.0
SILENCE_LIMIT_S = 3.0  # data unconfirmed by the other side's host for this time ends a connection
_LENGTH, _SEQUENCE = struct.Struct(">I"), struct.Struct(">Q")
_BLOCK_BYTES = 64  # of SHA-256
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_written = json.JSONEncoder(separators=(",", ":")).encode
_scanned = json.JSONDecoder().raw_decode


def is_refusal(error: OSError) -> bool:
    """True where the other side refused; False where there was no answer at all."""
    return isinstance(error, ConnectionRefusedError | ConnectionResetError | BrokenPipeError)


def prepare(sock: socket.socket) -> None:
    """Set up a control connection: small messages leave at once, and a peer that is cut off ends it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SILENCE_LIMIT_S))


class Channel:
    """A two-way stream of JSON messages over `sock`. Never blocks except in `flush(timeout_s)`.

    ``refused``: the other side, or at least its host, has ended the connection; False where it fell silent.
    ``unsent``: a set that this channel is in while bytes wait for its socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        secret: bytes | None,
        initiator: bool = False,
        unsent: set[Channel] | None = None,
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.closed = False
        self._secret = secret
        self._side = b"a" if initiator else b"b"
        self._nonce = os.urandom(NONCE_BYTES)
        self._sealing: FrameKey | None = None  # what is sent
        self._checking: FrameKey | None = None  # what is received
        self._unsent: set[Channel] = set() if unsent is None else unsent
        self._sent = self._received = 0
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._waiting: list[bytes] = []
        self._broken = False
        self._packed = PackedReader()
        self.held: deque[bytes] = deque(maxlen=HELD)  # digests of the compressed messages that were sent
        self._given = 0
        self.refused = False
        self.born_s = time.monotonic()
        if secret is not None:
            self._outbox += MAGIC + self._nonce
            self.push()

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self.sock.fileno()

    @property
    def authenticated(self) -> bool:
        """True once a frame from the other side carried a valid tag (always true on a socket pair)."""
        return self._secret is None or self._received > 0

    @property
    def greeted(self) -> bool:
        """True once the other side has answered the greeting (always true on a socket pair)."""
        return self._secret is None or self._checking is not None

    @property
    def unread(self) -> int:
        """Bytes of an incomplete message that have arrived."""
        return len(self._inbox)

    @property
    def arrived(self) -> int:
        """Bytes that this host has received and `receive` has not taken yet."""
        if self.closed:
            return 0
        return int(struct.unpack("i", fcntl.ioctl(self.sock, termios.FIONREAD, bytes(4)))[0])

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._outbox) + sum(map(len, self._waiting))

    @property
    def position(self) -> int:
        """Bytes sent or queued so far; compare with `confirmed` once the connection is `greeted`."""
        return self._given + len(self._outbox)

    @property
    def confirmed(self) -> int:
        """Bytes that the other side's host has confirmed (TCP), whether or not its process has read them."""
        if self.closed:
            return 0
        unconfirmed = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))[0]
        return self._given - int(unconfirmed)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send what the socket takes now. A closed or broken channel swallows it."""
        self.send_encoded(_written(message).encode())

    def send_encoded(self, payload: bytes) -> None:
        """As `send`, of the payload of a message (`payload_by_rank.py`)."""
        if self.closed or self._broken:
            return
        if self._secret is not None and self._sealing is None:
            self._waiting.append(payload)
        else:
            self._outbox += self._frame(payload)
        self.push()

    def receive(self) -> list[dict[str, Any]]:
        """Read what has arrived; sets `closed` at end of stream. Raises ProtocolError on a bad frame."""
        limit = len(self._inbox) + (READ_LIMIT_BYTES if self.authenticated else 1 << 16)
        try:
            while not self.closed and len(self._inbox) < limit:
                chunk = self.sock.recv(1 << 16)
                if not chunk:
                    self.refused = self.refused or not self._broken
                    self.close()
                self._inbox += chunk
                if len(chunk) < 1 << 16:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.refused = self.refused or is_refusal(error)
            self.close()
        messages = []
        if self._handshaken():
            while (payload := self._unframe()) is not None:
                messages.append(self._parse(payload))
        return messages

    def _parse(self, payload: bytes) -> dict[str, Any]:
        try:
            message = _read(self._packed.read(payload, FRAME_LIMIT_BYTES) if is_packed(payload) else payload)
        except (ValueError, RecursionError, ProtocolError) as error:
            self.close()
            raise ProtocolError(f"a frame is not JSON: {payload[:80]!r}") from error
        if not (isinstance(message, dict) and isinstance(message.get("type"), str)):
            self.close()
            raise ProtocolError(f"expected an object with a type, found {payload[:80]!r}")
        return message

    def flush(self, timeout_s: float) -> bool:
        """Send everything queued, waiting at most ``timeout_s``; False if something is left."""
        deadline = time.monotonic() + timeout_s
        while self.backlog and not self.closed:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            readable = [self.sock] if self._waiting and not self._outbox else []
            writable = [self.sock] if self._outbox else []
            select.select(readable, writable, [], remaining)
            if readable:
                self._peek_handshake()
            self.push()
        return not (self.closed or self._broken)

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        if not self.closed:
            self.closed = True
            self.sock.close()

    def push(self) -> None:
        """Send what the socket takes now: call when it is writable."""
        try:
            while self._outbox and not self.closed:
                sent = self.sock.send(self._outbox)
                self._given += sent
                del self._outbox[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self.refused = self.refused or is_refusal(error)
            self._break()
        if self._outbox:
            self._unsent.add(self)
        else:
            self._unsent.discard(self)

    def _break(self) -> None:
        """The other side is gone. Only `receive` closes: a selector forgets what is closed behind its back."""
        self._broken = True
        self._outbox.clear()
        self._waiting.clear()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def _peek_handshake(self) -> None:
        try:
            chunk = self.sock.recv(1 << 16)
        except OSError:
            return
        if not chunk:
            self._break()
        self._inbox += chunk
        self._handshaken()

    def _handshaken(self) -> bool:
        if self._secret is None or self._checking is not None:
            return True
        if len(self._inbox) < len(MAGIC) + NONCE_BYTES:
            return False
        if not self._inbox.startswith(MAGIC):
            self.close()
            raise ProtocolError(f"expected {MAGIC!r} at the start of a connection, found {bytes(self._inbox[:5])!r}")
        theirs = bytes(self._inbox[len(MAGIC) : len(MAGIC) + NONCE_BYTES])
        del self._inbox[: len(MAGIC) + NONCE_BYTES]
        first, second = (self._nonce, theirs) if self._side == b"a" else (theirs, self._nonce)
        other = b"b" if self._side == b"a" else b"a"
        self._sealing = FrameKey(hmac.digest(self._secret, self._side + first + second, "sha256"))
        self._checking = FrameKey(hmac.digest(self._secret, other + first + second, "sha256"))
        for payload in self._waiting:
            self._outbox += self._frame(payload)
        self._waiting.clear()
        self.push()
        return True

    def _frame(self, payload: bytes) -> bytes:
        if len(payload) > FRAME_LIMIT_BYTES:
            raise ProtocolError(f"message of {len(payload)} bytes is over the limit of {FRAME_LIMIT_BYTES}")
        self._sent += 1
        tag = self._sealing.tag(self._sent, payload) if self._sealing is not None else b""
        return _LENGTH.pack(len(payload)) + tag + payload

    def _unframe(self) -> bytes | None:
        tag_bytes = TAG_BYTES if self._secret is not None else 0
        if len(self._inbox) < 4:
            return None
        (length,) = _LENGTH.unpack_from(self._inbox)
        limit = FRAME_LIMIT_BYTES if self.authenticated else STRANGER_LIMIT_BYTES
        if length > limit:
            self.close()
            raise ProtocolError(f"a frame announces {length} bytes; the limit is {limit}")
        end = 4 + tag_bytes + length
        if len(self._inbox) < end:
            return None
        tag, payload = bytes(self._inbox[4 : 4 + tag_bytes]), bytes(self._inbox[4 + tag_bytes : end])
        del self._inbox[:end]
        if self._secret is not None and not self._proves(tag, payload):
            self.close()
            raise ProtocolError("a frame does not carry the job's secret")
        self._received += 1
        return payload

    def _proves(self, tag: bytes, payload: bytes) -> bool:
        key = self._checking
        return key is not None and hmac.compare_digest(tag, key.tag(self._received + 1, payload))


class FrameKey:
    """Computes HMAC-SHA256 (RFC 2104) of many short messages: `hmac.digest` would set the key up for each of them."""

    def __init__(self, key: bytes) -> None:
        """``key``: at most `_BLOCK_BYTES` long."""
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(padded.translate(_INNER))
        self._outer = hashlib.sha256(padded.translate(_OUTER))

    def tag(self, sequence: int, payload: bytes) -> bytes:
        """The first bytes of the code for the frame of this number."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(_SEQUENCE.pack(sequence))
        inner.update(payload)
        outer.update(inner.digest())
        return outer.digest()[:TAG_BYTES]


def _read(payload: bytes) -> Any:
    """As json.loads, which is slower because it looks for other encodings. Raises ValueError, RecursionError."""
    try:
        text = payload.decode()
        found, end = _scanned(text)
        if end == len(text):
            return found
    except ValueError:
        pass
    return json.loads(payload)
