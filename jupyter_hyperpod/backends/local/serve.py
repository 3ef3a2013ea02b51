"""The event loop of the zygote and of every node: requests over a unix socket, children watched by pidfd."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError
from ...core.units import plural
from ...system.diagnostics import note
from ...system.json_lines import JsonLineChannel, Message, Silent, accept
from ...system.processes import Identity, identify, signal_group

IDLE_TICK_S = 2.0


class RequestServer:
    """Serves requests until told to end, or until its socket file is gone: then its store has been deleted."""

    def __init__(self, listener: socket.socket, path: Path) -> None:
        self.listener = listener
        self.path = path
        self.channels: list[JsonLineChannel] = []
        self._silent = Silent()
        self._dropped, self._say_from_s = 0, 0.0
        self.children: dict[int, tuple[Identity, int, Any]] = {}
        self.running = True
        self.selector = selectors.DefaultSelector()
        self._inode = _inode(path)

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        """Carry out one request."""
        raise NotImplementedError

    def ended(self, child: Identity, about: Any, status: int) -> None:
        """A child has ended with `status` (negative: the signal)."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called whenever something has happened, and every other second."""

    def left(self, channel: JsonLineChannel) -> None:
        """A connection has ended."""

    def run(self) -> None:
        """Serve; returns when `running` is false."""
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
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
            leave(life)
        return self.watch(pid, about)

    def watch(self, pid: int, about: Any) -> Identity:
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

    def _accept(self) -> None:
        channel = accept(self.listener)
        if channel is not None:
            self.channels.append(channel)
            self.selector.register(channel, selectors.EVENT_READ, lambda: self._read(channel))
            if (oldest := self._silent.called(channel)) is not None:
                self._hang_up(oldest)

    def _read(self, channel: JsonLineChannel) -> None:
        if channel.closed:
            return  # hung up on a moment ago
        try:
            for message in channel.receive():
                self._silent.heard(channel)
                self.handle(message, channel)
        except (ProtocolError, LookupError, TypeError, OSError) as error:
            self._say_dropped(repr(error))
            channel.closed = True
        if channel.closed and channel in self.channels:
            self._hang_up(channel)

    def _say_dropped(self, reason: str) -> None:
        """The first one at once, then a line per minute."""
        self._dropped += 1
        if (now_s := time.monotonic()) >= self._say_from_s:
            note(f"{plural(self._dropped, 'connection')} dropped, the last: {reason}")
            self._dropped, self._say_from_s = 0, now_s + 60.0

    def _hang_up(self, channel: JsonLineChannel) -> None:
        self.selector.unregister(channel)
        self.channels.remove(channel)
        self._silent.heard(channel)
        channel.close()
        self.left(channel)

    def _reap(self, pid: int) -> None:
        child, pidfd, about = self.children.pop(pid)
        self.before_reaping(child)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.selector.unregister(pidfd)
        os.close(pidfd)
        self.ended(child, about, status)

    def before_reaping(self, child: Identity) -> None:
        """Called while the dead child still holds its pid, so that its group cannot be anybody else's yet."""


class GroupServer(RequestServer):
    """A server whose children lead groups of their own: what is left of a group ends with its leader."""

    def before_reaping(self, child: Identity) -> None:
        """Kill what the child has left behind."""
        signal_group(child, signal.SIGKILL)


def leave(life: Callable[[], int]) -> None:
    """Run ``life()`` as the whole life of a forked process; never returns."""
    status = 1
    try:
        status = life()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
