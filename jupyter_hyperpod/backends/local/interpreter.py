"""Starts the preloaded interpreter (zygote), asks it to fork nodes, and restarts it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ...core.errors import ProtocolError
from ...storage.environment import with_fixed_hashes
from ...system.diagnostics import note, open_log
from ...system.json_lines import JsonLineChannel, Message, connect, listen
from ...system.processes import Identity, identify, signal_group
from ..types import Surroundings
from .warm import LOG, SOCKET

PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)

OF_COORDINATORS = f"{__package__}.backend"  # each coordinator looks up what its job's backend can do


class WarmInterpreter:
    """One zygote at a time; ``hear(message)`` gets what it says, ``lost(reason)`` is called when it has ended."""

    def __init__(
        self, surroundings: Surroundings, hear: Callable[[Message], None], lost: Callable[[str], None]
    ) -> None:
        self._surroundings = surroundings
        self._directory = surroundings.directory
        self._selector = surroundings.selector
        self._hear = hear
        self._lost = lost
        self._channel: JsonLineChannel | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.identity: Identity | None = None
        self.ready = False
        self.heads_only = False  # it is to fork no nodes
        self.warm_key = ""
        self._failures = 0
        self._again_s = 0.0

    def open(self) -> None:
        """Adopt the zygote of an earlier supervisor, or start one."""
        channel = connect(self._directory, SOCKET)
        if channel is not None:
            self._greet(channel)
        else:
            self.start()

    def start(self) -> None:
        listener = listen(self._directory, SOCKET)
        log = open_log(self._directory / "logs", LOG)
        arguments = ["--directory", str(self._directory), "--listener", str(listener.fileno())]
        needed = self._surroundings.heads if self.heads_only else self._surroundings.preload
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_hyperpod.backends.local.warm", *arguments]
                + ["--preload", ",".join((*needed, OF_COORDINATORS))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                env=with_fixed_hashes(self._surroundings.environment),
                cwd=self._directory,
                start_new_session=True,
            )
        finally:
            listener.close()
            os.close(log)
        self.identity = identify(self.process.pid)
        channel = connect(self._directory, SOCKET)
        if channel is None:
            self._has_ended()
        else:
            self._greet(channel)

    def tick(self, now_s: float) -> None:
        """Start a zygote again where the pause after the end of the last one is over."""
        if self._channel is None and now_s >= self._again_s:
            self.start()

    def send(self, message: Message) -> bool:
        """Ask the zygote for something; False where there is none at present."""
        return self._channel is not None and self._channel.send(message)

    def end(self) -> None:
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
        if self.identity is not None:
            signal_group(self.identity, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self._channel, self.ready, self.identity, self.process = None, False, None, None

    def _greet(self, channel: JsonLineChannel) -> None:
        self._channel, self.ready = channel, False
        self._selector.register(channel, selectors.EVENT_READ, self._read)
        channel.send({"op": "hello", **self._surroundings.successor})

    def _read(self) -> None:
        assert self._channel is not None
        try:
            for message in self._channel.receive():
                if message["event"] == "hello":
                    self.ready, self._failures, self.warm_key = True, 0, message["warm_key"]
                    self.identity = Identity(message["pid"], message["start"])
                self._hear(message)
        except ProtocolError as error:
            note(f"the zygote sent nonsense: {error}")
            self._channel.closed = True
        if self._channel is not None and self._channel.closed:
            self._has_ended()

    def _has_ended(self) -> None:
        if self._channel is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._channel)
            self._channel.close()
        if not self.ready:
            self._failures += 1
        self._channel, self.ready = None, False
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
        pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._again_s = time.monotonic() + pause_s
        reason = f"the preloaded interpreter ended; see {self._directory / 'logs' / LOG}.log"
        note(f"{reason}; starting another in {pause_s:g} s")
        self._lost(reason)
