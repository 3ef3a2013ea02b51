"""Websocket frames as bytes (RFC 6455), and the channels of the Kubernetes API within them. Pure: no socket in here."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from ...core.errors import ProtocolError

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
SENT, OUTPUT, ERRORS, STATUS, CLOSED = 0, 1, 2, 3, 255  # channels: the first byte of each message
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"  # only the latter can say that the input has ended
MESSAGE_BYTES = 16 << 20
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accepted(key: str) -> str:
    """What a server has to answer to this key."""
    return base64.b64encode(hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest()).decode()


def frame(kind: int, payload: bytes, mask: bytes) -> bytes:
    """A whole message of a client as one frame; ``mask``: four random bytes."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8, "big")
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload with the mask laid over it; a second time gives the payload again."""
    size = len(payload)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")


class Messages:
    """Puts together what a server sends: `feed` takes bytes as they come and yields (kind, payload) of whole messages.

    Raises ProtocolError for what no server may send.
    """

    def __init__(self, limit_bytes: int = MESSAGE_BYTES) -> None:
        self._limit = limit_bytes
        self._waiting = bytearray()
        self._kind = CONTINUED
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take more bytes."""
        self._waiting += data
        while (found := self._next_frame()) is not None:
            last, kind, payload = found
            if kind >= CLOSE:
                yield kind, payload
                continue
            if (kind == CONTINUED) != (self._kind != CONTINUED):
                raise ProtocolError("the server sent the parts of a websocket message in the wrong order")
            self._kind = self._kind or kind
            self._parts += payload
            if len(self._parts) > self._limit:
                raise ProtocolError(f"the server sent a websocket message of more than {self._limit} bytes")
            if last:
                whole, of_kind = bytes(self._parts), self._kind
                self._kind = CONTINUED
                self._parts.clear()
                yield of_kind, whole

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        waiting = self._waiting
        if len(waiting) < 2:
            return None
        kind, size, start = waiting[0] & 0x0F, waiting[1] & 0x7F, 2
        if waiting[0] & 0x70 or waiting[1] & 0x80 or kind not in (CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise ProtocolError("the server sent a websocket frame that no server may send")
        if kind >= CLOSE and (size > 125 or not waiting[0] & 0x80):
            raise ProtocolError("the server sent a control frame that is too long or in parts")
        if size >= 126:
            start += 2 if size == 126 else 8
            if len(waiting) < start:
                return None
            size = int.from_bytes(waiting[2:start], "big")
        if size > self._limit:
            raise ProtocolError(f"the server sent a websocket frame of {size} bytes; {self._limit} are allowed")
        if len(waiting) < start + size:
            return None
        payload = bytes(waiting[start : start + size])
        last = bool(waiting[0] & 0x80)
        del waiting[: start + size]
        return last, kind, payload


def exit_status(told: bytes) -> tuple[int | None, str]:
    """The exit status of a command, from what its status channel said; None and why where it did not run."""
    try:
        found: Any = json.loads(told)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return None, "the answer of the node cannot be read"
    if found.get("status") == "Success":
        return 0, ""
    message = " ".join(str(found.get("message") or "no reason is given").split())
    details = found.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else []:
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            code = str(cause.get("message"))
            if code.isascii() and code.removeprefix("-").isdecimal() and len(code) < 8:
                return int(code), message
    return None, message
