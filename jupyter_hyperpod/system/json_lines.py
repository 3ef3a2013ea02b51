"""Sends and receives JSON lines over unix sockets that only their owner may open."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import ClusterError, ProtocolError
from . import portable

LINE_LIMIT_BYTES = 16 << 20
SEND_TIMEOUT_S = 2.0
_BACKLOG = 1024  # a caller that finds it full gets an error at once

Message = dict[str, Any]


@contextmanager
def _reachable(directory: Path, name: str) -> Iterator[str]:
    """A path of the socket short enough for ``sun_path`` (108 bytes), however deep the directory lies."""
    descriptor = os.open(directory, os.O_RDONLY | portable.DIRECTORY | portable.NOT_INHERITED)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(directory: Path, name: str) -> socket.socket:
    """Bind and listen at `directory/name`, mode 0600, in place of any socket that was there. Raises ClusterError."""
    (directory / name).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with _reachable(directory, name) as path:
            listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ClusterError(f"cannot listen at {directory / name}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    listener.setblocking(False)
    return listener


def connect(directory: Path, name: str) -> JsonLineChannel | None:
    """Return a channel to the process that listens at `directory/name`; None where no process listens."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(SEND_TIMEOUT_S)
    try:
        with _reachable(directory, name) as path:
            client.connect(path)
    except OSError:
        client.close()
        return None
    return JsonLineChannel(client)


def accept(listener: socket.socket) -> JsonLineChannel | None:
    """Accept one connection; None where the caller has gone or belongs to another user."""
    try:
        client, _ = listener.accept()
    except OSError:
        return None
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid not in (0, portable.user_id()):
        client.close()
        return None
    return JsonLineChannel(client)


class JsonLineChannel:
    """One connection that carries one JSON object per line, in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(SEND_TIMEOUT_S)
        self._tail = b""
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """Send one message; False where the peer has gone or has not read for a while."""
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message]:
        """Return the whole messages that have arrived, without waiting; sets `closed` at the end of the stream.

        Raises ProtocolError for an overlong line or one that is not a JSON object.
        """
        self._socket.settimeout(0.0)  # with another one Python waits, whatever the flags
        try:
            content = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            content = b""
        finally:
            self._socket.settimeout(SEND_TIMEOUT_S)
        if not content:
            self.closed = True
            return []
        return self._parse(content)

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Send `message` and wait for one answer. Raises ClusterError where none comes in time."""
        if not self.send(message):
            raise ClusterError("the supervisor closed the connection before it read the request")
        self._socket.settimeout(timeout_s)
        try:
            while content := self._socket.recv(1 << 16):
                if answers := self._parse(content):
                    return answers[0]
        except TimeoutError as error:
            raise ClusterError(f"the supervisor gave no answer within {timeout_s:g} s") from error
        except OSError as error:
            raise ClusterError(f"the supervisor did not answer: {error.strerror or error}") from error
        raise ClusterError("the supervisor closed the connection without an answer")

    def _parse(self, content: bytes) -> list[Message]:
        *lines, self._tail = (self._tail + content).split(b"\n")
        if len(self._tail) > LINE_LIMIT_BYTES:
            raise ProtocolError(f"a message of more than {LINE_LIMIT_BYTES} bytes; it ends here")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"not a JSON line: {line[:80]!r}") from error
            if not isinstance(message, dict):
                raise ProtocolError(f"expected a JSON object, found {line[:80]!r}")
            messages.append(message)
        return messages

    def close(self) -> None:
        self.closed = True
        self._socket.close()
