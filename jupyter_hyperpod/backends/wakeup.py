"""Lets a thread end the wait of a supervisor's selector, so that what it has learnt is acted on at once."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress


class Wakeup:
    """Call it from any thread; the selector hears it as it hears everything else."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._hears, self._says = socket.socketpair()
        for end in (self._hears, self._says):
            end.setblocking(False)
        selector.register(self._hears, selectors.EVENT_READ, self._heard)

    def __call__(self) -> None:
        with suppress(OSError):  # it was called often enough, or is closed
            self._says.send(b"\0")

    def close(self) -> None:
        """Take it out of the selector; on the selector's own thread."""
        with suppress(KeyError, ValueError, RuntimeError):  # the selector was closed before
            self._selector.unregister(self._hears)
        self._hears.close()
        self._says.close()

    def _heard(self) -> None:
        with suppress(OSError):
            while self._hears.recv(4096):
                pass
