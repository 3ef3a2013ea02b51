"""Journal writing that a full disk cannot stop: facts wait in memory and are written when there is room again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import StoreError
from ..storage.journal import event_writer

PENDING_LIMIT_BYTES = 32 << 20
EVENT_BYTES = 300  # about what an event takes besides its texts


class Reporter:
    """Appends events for one process. Never raises; what was dropped is said once there is room."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._writer = event_writer(directory, name)
        self._pending: deque[tuple[str, Mapping[str, Any], bool]] = deque()
        self._pending_bytes = 0
        self._dropped = 0

    def append(self, kind: str, data: Mapping[str, Any], *, durable: bool = False) -> None:
        """Write an event after those that still wait."""
        self._pending.append((kind, data, durable))
        self._pending_bytes += _size(data)
        self.retry()
        while self._pending_bytes > PENDING_LIMIT_BYTES and len(self._pending) > 1:
            self._forget()
            self._dropped += 1

    def retry(self) -> bool:
        """Write what waits; False if the disk still refuses."""
        try:
            while self._pending:
                kind, data, durable = self._pending[0]
                self._writer.append(kind, data, durable=durable)
                self._forget()
            if self._dropped:
                text = f"{self._dropped} events of {self._name} were lost while the job store refused writes"
                self._writer.append("warning.raised", {"text": text})
                self._dropped = 0
        except StoreError:
            return False
        return True

    def _forget(self) -> None:
        _, data, _ = self._pending.popleft()
        self._pending_bytes -= _size(data)

    def close(self) -> None:
        """Close the file."""
        self.retry()
        self._writer.close()


def _size(data: Mapping[str, Any]) -> int:
    return EVENT_BYTES + sum(len(value) for value in data.values() if isinstance(value, str))
