"""Connections between a pod's own store and that of its head: TLS by the job's secret, then frames in both directions.

A pod asks, and the head answers each question before it reads the next one (`file_service`). Questions and files are
frames of `mirror.mirror_frames`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ProtocolError, StoreError
from ..mirror.mirror_frames import Frame, FrameReader

if TYPE_CHECKING:
    from ssl import SSLContext, SSLSocket

ADDRESS_FILE = "head.json"  # in the job's directory of a pod that has a store of its own: where its head serves files
SUBJECT = b"files of a job"
READ_BYTES = 1 << 18
SLICE_S = 0.5


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """Where a head serves the files of its job."""

    host: str
    port: int

    def encode(self) -> bytes:
        return json.dumps({"host": self.host, "port": self.port}).encode()

    @classmethod
    def of(cls, job: Path) -> HeadAddress | None:
        """What stands in a job's directory; None where the store is the head's own. Raises StoreError."""
        try:
            found = json.loads((job / ADDRESS_FILE).read_bytes())
            return cls(str(found["host"]), int(found["port"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{job / ADDRESS_FILE} names no head: {error}") from error


class Wire:
    """One connection after its handshake. Every method raises OSError, and ProtocolError for what is no frame."""

    def __init__(self, sock: SSLSocket) -> None:
        self._sock, self._reader = sock, FrameReader()
        self._read: list[Frame] = []

    @classmethod
    def call(cls, address: HeadAddress, secret: bytes, timeout_s: float) -> Wire:
        """Connect. Raises OSError, TrainingError where this host cannot encrypt."""
        sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        return cls(_secured(sock, secret, calls=True))

    @classmethod
    def answer(cls, sock: socket.socket, secret: bytes, timeout_s: float) -> Wire:
        """Let a caller prove that it has the secret, and prove the same. Raises OSError."""
        sock.settimeout(timeout_s)
        return cls(_secured(sock, secret, calls=False))

    def patience(self, timeout_s: float | None) -> None:
        """How long the other side may say nothing."""
        self._sock.settimeout(timeout_s)

    def send(self, *frames: Frame) -> None:
        self._sock.sendall(b"".join(frame.encode() for frame in frames))

    def receive(self) -> Frame:
        """The next frame. Raises ConnectionResetError at the end."""
        while not self._read:
            data = self._sock.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the other side has ended the connection")
            self._read.extend(self._reader.feed(data))
        return self._read.pop(0)

    def wait_for(self, limit_s: float, goes_on: Callable[[], bool]) -> Frame:
        """The next frame, within ``limit_s`` and as long as it ``goes_on``, which is asked twice per second.

        Raises TimeoutError, too.
        """
        until_s = time.monotonic() + limit_s
        while True:
            self.patience(max(min(SLICE_S, until_s - time.monotonic()), 0.01))
            try:
                return self.receive()
            except TimeoutError:
                if time.monotonic() >= until_s or not goes_on():
                    raise

    def hang_up(self) -> None:
        """End it for the thread that uses it, which closes it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self._sock.close()


def _secured(sock: socket.socket, secret: bytes, *, calls: bool) -> SSLSocket:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _context(secret, calls).wrap_socket(sock, server_side=not calls)
    except BaseException:
        sock.close()
        raise


@lru_cache(maxsize=4)
def _context(secret: bytes, calls: bool) -> SSLContext:
    from ...system.encryption import encryption_context  # a process whose store is the head's needs no TLS

    return encryption_context(secret, SUBJECT, calls=calls)


def digest(content: bytes) -> str:
    """What tells one content of a small file from another."""
    return hashlib.sha256(content).hexdigest()


def refusal(error: Exception) -> Frame:
    """The answer to a question that the head cannot answer."""
    return Frame({"error": str(error)[:500]})


def told(frame: Frame) -> Frame:
    """An answer. Raises StoreError where it is a refusal."""
    if "error" in frame.head:
        raise StoreError(f"the head of the job says: {str(frame.head['error'])[:500]}")
    return frame


def word(frame: Frame, name: str) -> str:
    """A text of a frame. Raises ProtocolError."""
    found = frame.head.get(name)
    if not isinstance(found, str):
        raise ProtocolError(f"a frame has {str(found)[:80]!r} as {name}; expected a text")
    return found
