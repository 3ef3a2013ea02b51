"""Keeps Python's collections of garbage short, in a server that lives for weeks and answers on one thread.

A full collection visits every object that can hold others, and nothing else runs meanwhile: a Jupyter server has
200,000 of them when it has started, which is a tenth of a second. What a full collection has left alive is therefore
set aside (`gc.freeze`) and not visited again; its reference counts free it as before. What became a cycle after it was
set aside is found by `thorough`, at a moment at which nobody waits.
"""

from __future__ import annotations

import gc
import time

# a full collection after at most 700 * 6 * 4 new objects: 17,000, which are about 10 ms
OFTEN = (700, 5, 3)
QUIET_S, BUSY_S = 3600.0, 86400.0  # between two thorough collections, at least: while nobody waits, and otherwise


class ShortCollections:
    """From `begin` to `end`, for the whole process. Methods may be called twice."""

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        self._thorough_s = time.monotonic()

    def begin(self) -> None:
        """Set aside what exists now."""
        gc.freeze()
        gc.set_threshold(*OFTEN)
        if self._collected not in gc.callbacks:
            gc.callbacks.append(self._collected)
        gc.collect()  # of nothing: Python waits for a quarter more objects than the last full collection found

    def end(self) -> None:
        """Collect as Python does on its own."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*self._before)
            gc.unfreeze()

    def thorough(self, quiet: bool) -> None:
        """Look at all that was set aside, if it is due: that holds the process for 0.1 s or more."""
        due_s = self._thorough_s + (QUIET_S if quiet else BUSY_S)
        if self._collected in gc.callbacks and time.monotonic() >= due_s:
            gc.unfreeze()
            gc.collect()
            self._thorough_s = time.monotonic()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == len(OFTEN) - 1:
            gc.freeze()
