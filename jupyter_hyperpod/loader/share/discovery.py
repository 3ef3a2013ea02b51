"""Lets ranks that load the same model find each other's memory, by notices on the model's board."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from ..read.model_files import Files
from .board import Board
from .shared_buffer import BufferAddress, SharedBuffer

HERE = "at-"
TOKEN_DIGITS = 8
STEM = len(HERE) + TOKEN_DIGITS


@dataclass(frozen=True, slots=True)
class Notice:
    """The address of a rank that holds a model. Without a port, only processes of its host reach it."""

    place: BufferAddress
    node: str = ""
    host: str = ""
    port: int = 0

    @property
    def name(self) -> str:
        """Its name on the board."""
        return f"{HERE}{self.place.token[:TOKEN_DIGITS]}-{self.place.pid}-{self.place.descriptor}"

    def encode(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Notice | None:
        """Inverse of `encode`, None for another text."""
        try:
            record = json.loads(text)
            at = record["place"]
            place = BufferAddress(int(at["pid"]), int(at["descriptor"]), int(at["inode"]), str(at["token"]))
            return cls(place, str(record["node"]), str(record["host"]), int(record["port"]))
        except (ValueError, KeyError, TypeError):
            return None


def name_of(files: Files, *details: object) -> str:
    """Return a name that is equal for two ranks where their files and the details are."""
    objects = [(source.name, source.size, source.etag) for source in files.sources]
    return hashlib.sha256(json.dumps([objects, *details]).encode()).hexdigest()[:32]


def attach_or_create(board: Board, count: int, sizes: Sequence[int], node: str | None = None) -> SharedBuffer:
    """Return the buffer of a rank on this host (with `node`: on this node), else a new one."""
    for name in board.names(HERE):
        notice = Notice.decode(board.get(name) or "")
        if notice is not None and node in (None, notice.node):
            with suppress(OSError):
                return SharedBuffer.attach(notice.place, count, sizes)
    return SharedBuffer.create(count, sizes)
