"""What travels between two stores: frames, each a line of JSON and the bytes that it announces. Pure.

{"path": P, "at": N, "size": K}   K bytes follow, which stand at offset N of the file P
{"path": P, "whole": 1, "size": K}   K bytes follow, which are the whole file P now
{"there": {FOLDER: [NAME, …]}}    the files of these folders: others are gone
{"beat": 1}                       the sender is alive
{"commit": 1}                     all files that a job begins with have been sent
{"fetched": 1}                    the receiver has everything
{"end": 1}                        the job is over, and all has been sent
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import ProtocolError

HEAD_BYTES = 4 << 20  # of a line: the names of a folder may be many
CONTENT_BYTES = 1 << 20
WHOLE_BYTES = 80 << 20  # of a file that is sent whole: values that come back may have 64 MiB


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; ``head`` without its size."""

    head: Mapping[str, Any]
    content: bytes = b""

    def encode(self) -> bytes:
        sized = {**self.head, "size": len(self.content)} if "path" in self.head else dict(self.head)
        return json.dumps(sized, separators=(",", ":")).encode() + b"\n" + self.content


@dataclass
class FrameReader:
    """Takes bytes as they come and gives whole frames. Raises ProtocolError for what is no frame."""

    _waiting: bytearray = field(default_factory=bytearray)
    _head: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take more bytes."""
        self._waiting += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if self._head is None:
            line, newline, rest = self._waiting.partition(b"\n")
            if not newline:
                if len(self._waiting) > HEAD_BYTES:
                    raise ProtocolError("the other side sent a line without an end")
                return None
            self._head, self._waiting = _parsed(bytes(line)), rest
        size = self._head.get("size", 0)
        if len(self._waiting) < size:
            return None
        head, content = self._head, bytes(self._waiting[:size])
        del self._waiting[:size]
        self._head = None
        return Frame({name: value for name, value in head.items() if name != "size"}, content)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError(f"the other side sent {line[:80]!r}; expected a frame")
    for name in ("size", "at"):
        if type(found.get(name, 0)) is not int or not 0 <= found.get(name, 0) < 1 << 50:
            raise ProtocolError(f"the other side sent a frame whose {name} is {str(found[name])[:40]}")
    if found.get("size", 0) > WHOLE_BYTES or ("path" in found and not isinstance(found["path"], str)):
        raise ProtocolError("the other side sent a frame that is too large, or names no file")
    return found
