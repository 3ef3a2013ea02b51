"""The event loop of the zygote and of every node: requests over a unix socket, children watched by pidfd."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...core.units import plural
from ...system.diagnostics import note
from ...system.json_lines import JsonLineChannel, Message
from ...system.listener import Listener
from ...system.processes import Identity, identify
from ..forked import run_and_exit

IDLE_TICK_S = 2.0


class RequestServer(Listener):
    """Serves requests until told to end, or until its socket file is gone: then its store has been deleted."""

    refused = (ProtocolError, LookupError, TypeError, OSError)

    def __init__(self, listener: socket.socket, path: Path) -> None:
        super().__init__(listener, selectors.DefaultSelector())
        self.path = path
        self._dropped, self._say_from_s = 0, 0.0
        self.children: dict[int, tuple[Identity, int, Any]] = {}
        self.running = True
        self._inode = _inode(path)

    def ended(self, child: Identity, about: Any, status: int) -> None:
        """A child has ended with `status` (negative: the signal)."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called whenever something has happened, and every other second."""

    def run(self) -> None:
        """Serve; returns when `running` is false."""
        while self.running:
            for key, _ in self.selector.select(IDLE_TICK_S):
                callback: Callable[[], None] = key.data
                callback()
            self.tick()
            if _inode(self.path) != self._inode:
                note(f"{self.path} is gone: ending")
                self.running = False

    def fork(self, life: Callable[[], int], about: Any) -> Identity:
        """Fork a child that runs ``life()`` and exits with what it returns; `about` comes back in `ended`."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            run_and_exit(life)
        return self.track(pid, about)

    def track(self, pid: int, about: Any) -> Identity:
        """Report the end of the child `pid` through `ended`."""
        child = identify(pid)
        pidfd = os.pidfd_open(pid)
        self.children[pid] = (child, pidfd, about)
        self.selector.register(pidfd, selectors.EVENT_READ, lambda: self._reap(pid))
        return child

    def broadcast(self, message: Message) -> None:
        """Tell every connected supervisor."""
        for channel in self.channels:
            channel.send(message)

    def refuse(self, error: Exception, channel: JsonLineChannel) -> None:
        """Note the first dropped connection at once, then a line per minute."""
        self._dropped += 1
        if (now_s := time.monotonic()) >= self._say_from_s:
            note(f"{plural(self._dropped, 'connection')} dropped, the last: {error!r}")
            self._dropped, self._say_from_s = 0, now_s + 60.0

    def _reap(self, pid: int) -> None:
        child, pidfd, about = self.children.pop(pid)
        self.before_reaping(child)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.selector.unregister(pidfd)
        os.close(pidfd)
        self.ended(child, about, status)

    def before_reaping(self, child: Identity) -> None:
        """Called while the dead child still holds its pid, so that its group cannot be anybody else's yet."""


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
