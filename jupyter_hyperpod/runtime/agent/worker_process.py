"""Manages one worker process for its agent: forks it warm, watches it by pidfd, captures its output."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...core.errors import ProtocolError
from ...storage.output.output_relay import MARK_BEGINS, StepLabel, step_mark
from ...system.processes import close_descriptors, follow_parent, is_stopped
from ..connection import Channel
from ..progress import WorkerProgress
from ..protocol import facts
from ..protocol.codec import Message, decode, encode

WORKER_FD = 3
HOLD_PARTIAL_LINE_S = 0.05
HOLD_MARK_S = 1.0  # half of a mark: the other half comes

WorkerMain = Callable[..., int]  # of its channel, its progress and its links


class Output:
    """The read end of a worker's stdout or stderr, decoded as UTF-8 in chunks of whole lines where possible."""

    def __init__(self, descriptor: int, stream: str) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.stream = stream
        self.ended = False
        self.label = StepLabel()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._partial_since = 0.0

    def fileno(self) -> int:
        """The pipe's descriptor, for selectors."""
        return self.descriptor

    def read(self) -> str:
        """Return whole lines that have arrived; an unfinished line is held for a moment."""
        try:
            chunk = os.read(self.descriptor, 1 << 16)
            self.ended = not chunk
        except BlockingIOError:
            return ""
        text = self._partial + self._decoder.decode(chunk, final=self.ended)
        end = len(text) if self.ended else text.rfind("\n") + 1
        if not self._partial:
            self._partial_since = time.monotonic()
        self._partial = text[end:]
        return text[:end]

    def overdue(self) -> str:
        """Return an unfinished line that was held long enough (a prompt, a progress bar)."""
        hold_s = HOLD_MARK_S if MARK_BEGINS[0] in self._partial else HOLD_PARTIAL_LINE_S
        if not self._partial or time.monotonic() - self._partial_since < hold_s:
            return ""
        text, self._partial = self._partial, ""
        return text

    def drain(self) -> str:
        """Return all that is left in the pipe now and close it."""
        parts = []
        while not self.ended:
            before = self._partial
            text = self.read()
            parts.append(text)
            if not text and self._partial == before:
                break
        parts.append(self._partial)
        self._partial = ""
        self.close()
        return "".join(parts)

    def close(self) -> None:
        """Close the pipe; safe to call twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.ended = True


class WorkerProcess:
    """A forked worker. The caller must be single-threaded, and closes the `links` that the worker keeps."""

    overdue = False  # no error of it is held back, see `ReplicaProcesses`

    def __init__(self, main: WorkerMain, links: Sequence[socket.socket] = ()) -> None:
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self.progress = WorkerProgress()
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _worker_life(main, agent, theirs.fileno(), out_write, err_write, self.progress, [s.fileno() for s in links])
        for descriptor in (out_write, err_write):
            os.close(descriptor)
        theirs.close()
        self.channel = Channel(ours, secret=None)
        self.outputs = [Output(out_read, "stdout"), Output(err_read, "stderr")]
        self.pidfd = os.pidfd_open(self.pid)
        self.status: int | None = None

    @property
    def channels(self) -> list[Channel]:
        """Where it can be heard."""
        return [self.channel]

    @property
    def pidfds(self) -> list[int]:
        """Readable when it has ended."""
        return [self.pidfd]

    def receive(self) -> list[Message]:
        """What it has said. What cannot be read fails the cell: what follows it could not be trusted."""
        said = []
        for found in self.channel.receive():
            try:
                said.append(decode(found))
            except ProtocolError as error:
                wrong = facts.CellError("ProtocolError", str(error), (), None, False)
                said.append(facts.CellFailed(time.monotonic(), wrong))
        return [fact for fact in said if fact is not None]

    def send(self, order: Message) -> None:
        """Pass an order on to it."""
        self.channel.send(encode(order))

    def over(self, pidfd: int) -> bool:
        """True: it is the process behind `pidfd`, which has ended."""
        return True

    def signal(self, number: int) -> None:
        """Send a signal; a worker that is gone already is no error."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, number)

    def hold(self) -> None:
        """Stop the worker and what it has started."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `hold`."""
        self._signal_group(signal.SIGCONT)

    def stopped(self) -> bool:
        """True while the process is stopped (SIGSTOP, a debugger)."""
        return is_stopped(self.pid)

    def reap(self) -> int:
        """Collect the exit status (negative: the signal that killed it) and end what the worker had started."""
        if self.status is None:
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
            self._signal_group(signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def _signal_group(self, number: int) -> None:
        if self.status is None:  # it is not reaped yet, so its pid and process group cannot be reused
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Release every descriptor."""
        self.channel.close()
        for output in self.outputs:
            output.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _end_by(number: int) -> None:
    """End as without a handler: processes that the cell forks have inherited the handler."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _worker_life(
    main: WorkerMain, agent: int, sock: int, out: int, err: int, progress: WorkerProgress, links: Sequence[int]
) -> None:
    """Everything a worker process is, from fork to exit; never returns."""
    code, me = 1, os.getpid()
    try:
        if not follow_parent(agent):
            os._exit(1)  # it was gone before it could be watched
        os.setpgid(0, 0)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # a scheduler's warning may reach every process of a node: its agent is the one that acts
        signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getppid(), signal.SIGUSR1) if os.getpid() == me else None)
        signal.signal(signal.SIGTERM, lambda *_: None if os.getpid() == me else _end_by(signal.SIGTERM))
        null = os.open(os.devnull, os.O_RDONLY)
        lowest = WORKER_FD + 1 + len(links)
        sock, out, err, null, *links = (_above(descriptor, lowest) for descriptor in (sock, out, err, null, *links))
        kept = [(source, WORKER_FD + 1 + place) for place, source in enumerate(links)]
        for source, target in ((null, 0), (out, 1), (err, 2), (sock, WORKER_FD), *kept):
            os.dup2(source, target, inheritable=target < WORKER_FD)
        close_descriptors(lowest)
        sys.stdout, sys.stderr = _text_stream(1, progress), _text_stream(2, progress)
        channel = Channel(socket.socket(fileno=WORKER_FD), secret=None)
        code = main(channel, progress, *(Channel(socket.socket(fileno=target), secret=None) for _, target in kept))
        channel.flush(2.0)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _above(descriptor: int, lowest: int) -> int:
    """Duplicate out of the range that is about to be overwritten."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, lowest)


class _LabelledFile(io.FileIO):
    """A descriptor to which a mark is written before what is printed in another step than before."""

    def __init__(self, descriptor: int, progress: WorkerProgress) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._progress = progress
        self._said = (0, 0)
        self._place = self._where()

    def write(self, content: Any, /) -> int:
        here = self._progress.under_way()
        if here != self._said and self._where() == self._place:  # else the program has put a file in its place
            self._said = here
            os.write(self.fileno(), step_mark(*here).encode())
        return super().write(content)

    def _where(self) -> tuple[int, int]:
        found = os.fstat(self.fileno())
        return found.st_dev, found.st_ino


def _text_stream(descriptor: int, progress: WorkerProgress) -> io.TextIOWrapper:
    buffered = io.BufferedWriter(_LabelledFile(descriptor, progress))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)
