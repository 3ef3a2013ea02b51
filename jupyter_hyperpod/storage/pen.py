"""A journal that a full disk cannot take down with it: what cannot be written is kept, in order, for later."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import StoreError
from ..core.events import Event
from .journal import Writer, event_writer

KEPT = 10_000


class Pen:
    """Writes events to `directory`; `problem` says why the disk refuses, or is empty."""

    def __init__(self, directory: Path, name: str) -> None:
        self.problem = ""
        self._directory = directory
        self._name = name
        self._writer: Writer[Event] | None = None
        self._kept: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=KEPT)

    def write(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Write an event, after those still kept; False where it had to be kept itself."""
        self._kept.append((kind, data))
        return self.flush()

    def flush(self) -> bool:
        """Try to write what is kept; True when nothing is left."""
        try:
            if self._kept and self._writer is None:
                self._writer = event_writer(self._directory, self._name)
            while self._kept and self._writer is not None:
                self._writer.append(*self._kept[0])
                self._kept.popleft()
        except StoreError as error:
            self.problem = str(error)
            return False
        self.problem = ""
        return True

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
