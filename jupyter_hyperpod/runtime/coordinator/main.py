"""The coordinator's process, one per job: sockets, timers and journals around the `Controller`, which decides.

A kill is noticed in `_hear` (an agent's connection ends, or it says that its worker exited) or in `_tick`
(heartbeats, progress). Members keep training while there is no coordinator; a new one starts from the journal
and from the agents' registrations.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from ...core.errors import ProtocolError
from ...storage.endpoint import OwnEndpoint, Replaced
from ...storage.environment import adopt, begin_with
from ...storage.folded import FoldedJournal
from ...storage.journal import follow_commands
from ...storage.journal_keeper import Growth
from ...storage.journal_search import read_kinds
from ...storage.journal_writer import JournalWriter
from ...storage.resources.samples_writer import samples_writer
from ...system.addresses import listen_for_words
from ...system.processes import raise_descriptor_limit
from ..connection import Channel, prepare
from ..context import Context
from ..protocol import orders
from ..protocol.codec import encode
from ..sidecars import journal_keeper, log_watcher
from .commands import obey
from .controller import Controller
from .job_state import CELL_KINDS, so_far
from .phase import Phase
from .unauthenticated import MOST_PLACES, Strangers, places

TICK_S = 0.02
TOUCH_S = 0.5
FAREWELL_S = 2.0
GROWTH_S = 5.0
ACCEPTS = 64  # connections that are taken in between two looks at the members
REST_S = 0.5  # without new connections, where no descriptor is left for one
TERMINATED = "the coordinator was told to terminate (SIGTERM): the job goes on with the next one"
RANKS = ("worker-", "agent-")  # writers of long files that do not say what the coordinator has decided


class Terminated(Exception):
    """SIGTERM has come, as from a host that is shut down."""


class Coordinator:
    """One coordinator's sockets, timers and files; `run` returns when the job has ended."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.selector = selectors.DefaultSelector()
        self._touch_s = 0.0
        self._told_to_terminate = False
        self._secret = context.job.secret()
        self._listener: socket.socket | None = None
        self._resting_until_s = self._next_tick_s = 0.0
        self.guests: dict[Channel, int] = {}  # with their descriptors, which the selector needs when they are closed
        self._unsent: set[Channel] = set()  # guests for whom bytes wait
        self.reporter = JournalWriter(context.job.events, "coordinator")
        self._samples = samples_writer(context.job, lambda text: self.reporter.write("warning.raised", {"text": text}))
        view = FoldedJournal(context.job).catch_up()
        self.reporter.follow(view["updated_s"] or 0.0)
        events = read_kinds(context.job.events, (*CELL_KINDS, "command.done"), without=RANKS)
        self._endpoint = OwnEndpoint(context.endpoint_file, context.turn)
        self.controller = Controller(context, view, self.reporter, *so_far(events), require_newest=self._endpoint.check)
        most = places(self.controller.state.spec.nodes, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.strangers = Strangers(lambda text: self.reporter.write("warning.raised", {"text": text}), most)
        self.commands = follow_commands(context.job.commands)
        self._told = 0  # problems of commands that are journaled
        self._growth, self._growth_s = Growth(context.job), 0.0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        done = [event.data for event in events if event.kind == "command.done"]
        self.handled = {(data["command"]["writer"], data["command"]["seq"]) for data in done}
        for data in done:
            if data["kind"] == "stop" and data["ok"]:  # the one before obeyed, and died before it could say so
                self.controller.end("stopped", data["reason"])

    def run(self) -> int:
        """Serve until the job has ended, or another coordinator continues it; returns the exit status."""
        try:
            self._serve()
            return self._end()
        except Replaced as error:
            text = f"the coordinator of turn {self.context.turn} ends: {error}"
            self.reporter.write("warning.raised", {"text": text})
            self.reporter.close()
            return 0
        except Terminated:
            self._leave()
            return 128 + signal.SIGTERM

    def _serve(self) -> None:
        self._listener = listener = self._listen()
        signal.signal(signal.SIGTERM, self._terminated)
        self.controller.begin()
        self._watcher = log_watcher(self.context)
        while not self.controller.state.ended:
            if self._told_to_terminate:
                raise Terminated
            for key, _ in self.selector.select(TICK_S):
                if key.fileobj is listener:
                    self._receive_callers(time.monotonic())  # a tick in this round may have let it rest
                else:
                    self._hear(key.fileobj)
                self._tick_if_due()  # a round of thousands of members takes longer than a tick
            self._tick_if_due()

    def _tick_if_due(self) -> None:
        if (now := time.monotonic()) >= self._next_tick_s:
            self._tick(now)
            self._next_tick_s = time.monotonic() + TICK_S

    def _leave(self) -> None:
        """Members keep their state, and the next coordinator continues, here or on another host."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
        self.reporter.write("warning.raised", {"text": TERMINATED})
        self.reporter.close()

    def _end(self) -> int:
        self._farewell()
        self.context.job.forget_session_ends()
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
        self.controller.say_final_state()
        self._write_samples(time.monotonic(), all_of_them=True)
        self._samples.close()
        self.reporter.settle(self._endpoint.touch)  # what is not in the journal would be done once more
        self._endpoint.end(self.controller.said_state)
        self.reporter.close()
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(FAREWELL_S)
        return 0

    def _terminated(self, *_: object) -> None:
        """A signal may come in the middle of a decision: the loop leaves."""
        self._told_to_terminate = True

    def _listen(self) -> socket.socket:
        listener = listen_for_words(self.context.bind_address(), 0, MOST_PLACES)
        listener.setblocking(False)
        host, port = listener.getsockname()[:2]
        self._endpoint.announce(host, port)
        self.selector.register(listener, selectors.EVENT_READ)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        now = time.monotonic()
        for _ in range(ACCEPTS):
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._rest(listener, now)
                return
            prepare(sock)
            channel = Channel(sock, self._secret, unsent=self._unsent)
            self.guests[channel] = sock.fileno()
            self.selector.register(channel, selectors.EVENT_READ)
            if (oldest := self.strangers.next_to_go) is not None:
                self._hear(oldest)  # as in `_tick`
            self._hang_up(self.strangers.called(channel, now))

    def _rest(self, listener: socket.socket, now: float) -> None:
        """Leave callers in the queue for a while: a listener whose callers nobody takes would keep the loop awake."""
        self.selector.unregister(listener)
        self._resting_until_s = now + REST_S
        self.strangers.refused("no file descriptor is left: allow this user more open files (ulimit -n)", now)

    def _receive_callers(self, now: float) -> None:
        """Take callers between two members of a round, too, or their queue would overflow."""
        if self._listener is None or now < self._resting_until_s:
            return
        if self._resting_until_s:
            self._resting_until_s = 0.0
            self.selector.register(self._listener, selectors.EVENT_READ)
        self._accept(self._listener)

    def _hear(self, channel: Any) -> None:
        if channel not in self.guests:
            return  # hung up on a moment ago
        now = time.monotonic()
        try:
            for message in channel.receive():
                self.controller.hear(channel, message)
        except ProtocolError as error:
            self.strangers.refused(str(error), now)
            channel.close()
        self._hang_up(self.strangers.heard(channel, now))
        if channel.closed and channel in self.guests:
            self._forget(channel)

    def _hang_up(self, channels: list[Channel]) -> None:
        for channel in channels:
            channel.close()
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        self.selector.unregister(self.guests.pop(channel))
        self._unsent.discard(channel)
        self.controller.hung_up(channel)

    def _tick(self, now: float) -> None:
        if now >= self._touch_s:
            self._touch_s = now + TOUCH_S
            self._endpoint.touch()
        if now >= self._growth_s:
            self._growth_s = now + GROWTH_S
            self._keep_journal()
        self.reporter.flush()
        self._write_samples(now)
        # while members of an earlier coordinator are still coming, nobody knows which rank is whose
        for command in self.commands.poll() if self.controller.state.phase is not Phase.ADOPTING else ():
            if self.controller.state.ended:
                break
            if (command.writer, command.seq) not in self.handled:
                obey(self.controller, command)
        for problem in self.commands.problems[self._told :]:
            self._told += 1
            self.reporter.write("warning.raised", {"text": f"commands: {problem}"})
        for channel in self.controller.state.roster.stopped():
            self._hear(channel)  # it may go on, and nobody has read that yet
        self.controller.tick(now)
        for channel in self.strangers.late(now):
            self._hear(channel)  # it may have proved the secret, and nobody has read that yet
        self._hang_up(self.strangers.look(now))
        self._receive_callers(now)
        for channel in tuple(self._unsent):
            channel.push()

    def _write_samples(self, now: float, *, all_of_them: bool = False) -> None:
        for data in self.controller.samples.take(now, all_of_them=all_of_them):
            self._samples.write("nodes.sampled", data)

    def _keep_journal(self) -> None:
        """Have a journal that has grown folded and thinned, beside this process."""
        if (self._keeper is None or self._keeper.poll() is not None) and self._growth.enough():
            self._keeper = journal_keeper(self.context)

    def _farewell(self) -> None:
        """Release every agent and wait until each has journaled its worker's last words."""
        proven = {channel for channel in self.guests if channel.authenticated}  # a stranger would be waited for in vain
        channels = {m.channel for m in self.controller.state.roster.members.values()} | proven
        for channel in channels:
            channel.send(encode(orders.Release()))
        deadline = time.monotonic() + FAREWELL_S
        while (open_channels := [c for c in channels if not c.closed]) and time.monotonic() < deadline:
            for channel in open_channels:
                channel.push()
                try:
                    channel.receive()
                except ProtocolError:
                    channel.close()
            time.sleep(0.002)


def main() -> int:
    """Entry point of ``python -m jupyter_hyperpod.runtime.coordinator.main``; everything is in the environment."""
    raise_descriptor_limit()  # one for each member
    context = Context.from_environment()
    adopt(context.job)
    return Coordinator(context).run()


if __name__ == "__main__":
    begin_with(Context.from_environment().job)
    status = main()
    sys.stdout.flush()
    os._exit(status)
