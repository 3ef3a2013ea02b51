"""Rings when objects of ours change, so that they are listed then, and not every second.

What is listed stays the one truth: a watch only says that there is something new. So a change that a watch brings late,
twice or not at all costs time at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ...core.errors import ClusterError
from .client import Api
from .watching import ApiWatch

AGAIN_S = 300.0  # who may not watch is not told so every few seconds
JOIN_S = 1.0


class Doorbell:
    """Watches of some kinds of objects, each on a thread of its own, from the versions at which they were listed."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._watches: dict[str, ApiWatch] = {}
        self._threads: list[threading.Thread] = []
        self._rung = threading.Event()
        self._again_s = 0.0

    def hang(self, api: Api, labels: str, versions: Mapping[str, str]) -> None:
        """Watch these paths from these versions on, where nothing watches yet."""
        if self._watches or time.monotonic() < self._again_s:
            return
        self._watches = {path: api.watch(path, labels, since) for path, since in versions.items()}
        names = {path: path.rpartition("/")[2] for path in versions}
        self._threads = [
            threading.Thread(target=self._listen, args=(watch,), name=f"watch {names[path]}", daemon=True)
            for path, watch in self._watches.items()
        ]
        for thread in self._threads:
            thread.start()

    def heard(self) -> None:
        """Everything is about to be listed: what rings from now on is new."""
        self._rung.clear()

    def quiet(self) -> bool:
        """Whether all watches are connected, and none has rung since `heard`."""
        watches = list(self._watches.values())
        return bool(watches) and all(watch.connected for watch in watches) and not self._rung.is_set()

    def close(self) -> None:
        """Take it down."""
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)

    def _listen(self, watch: ApiWatch) -> None:
        with suppress(ClusterError):  # it may not be watched: then it is listed as often as before
            for _ in watch:
                self._rung.set()
                self._ring()
        if watch in self._watches.values():
            self._again_s = time.monotonic() + AGAIN_S
            for other in self._watches.values():
                other.close()
            self._watches = {}
