"""A reader: a forked process that reads micro-batches ahead. It ends with its parent, however that ends."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import _utils as torch_utils

from ...system.processes import die_with_parent
from . import transport
from .indexed import IndexedData
from .reading import Reading, read

GRACE_S = 0.2  # for a reader that is idle, to end by itself
_LENGTH = 8  # bytes before a request


class Reader:
    """A reader as its parent sees it. ``sent``: what it was asked for and has not answered, in that order."""

    def __init__(self, data: IndexedData, number: int, count: int, begin: Callable[[int], object] | None) -> None:
        """Fork it. ``begin(number)`` is called in it first, as a DataLoader's ``worker_init_fn`` is."""
        self.sent: deque[Reading] = deque()
        self.connection, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a closed or replaced stream
                stream.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: see `_begin`
            self.pid = os.fork()
        if not self.pid:
            _live(theirs, parent, data, number, count, begin)
        theirs.close()

    def fileno(self) -> int:
        """For `select`."""
        return self.connection.fileno()

    def ask(self, reading: Reading) -> None:
        """Request a micro-batch. Whether the reader lives is seen where its answer is received."""
        self.sent.append(reading)
        request = json.dumps((reading.step, reading.leaf, reading.indices, reading.seed)).encode()
        with suppress(OSError):
            self.connection.sendall(len(request).to_bytes(_LENGTH, "big") + request)

    def has_answer(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer, or the reader's end, can be received without waiting."""
        return bool(select.select([self], [], [], timeout_s)[0])

    def answer(self) -> tuple[Reading, int, Any]:
        """The oldest request, with its answer. Raises EOFError where the reader has ended."""
        kind, value = transport.receive(self.connection)
        return self.sent.popleft(), kind, value

    def status(self) -> int:
        """Wait for its end; return its exit status, negative for a signal."""
        self.connection.close()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # someone else has waited for it
            return 0


def end(readers: list[Reader], owner: int) -> None:
    """End readers, unless this is another process than their parent, ``owner``, such as one that it forked."""
    if os.getpid() != owner:
        return
    for reader in readers:
        reader.connection.close()
    deadline_s = time.monotonic() + GRACE_S
    for reader in readers:
        with suppress(ChildProcessError):
            while os.waitpid(reader.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline_s:
                    os.kill(reader.pid, signal.SIGKILL)
                    os.waitpid(reader.pid, 0)
                    break
                time.sleep(0.001)
    readers.clear()


def _live(
    connection: socket.socket,
    parent: int,
    data: IndexedData,
    number: int,
    count: int,
    begin: Callable[[int], object] | None,
) -> None:
    """The reader's life. It never returns."""
    status = 1
    try:
        _begin(connection, parent)
        _serve(connection, data, _failure(begin, number, count, data) if begin is not None else "")
        status = 0
    except (EOFError, ConnectionError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(status)


def _begin(connection: socket.socket, parent: int) -> None:
    """Leave the parent's connections, signals and threads alone.

    Another process that holds a worker's socket would hide its end from the other members. The numbers of the
    descriptors stay in use, because objects of the parent that exist here, too, would close them a second time.
    """
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) != connection.fileno() and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.dup2(nothing, int(name), inheritable=False)
    torch.set_num_threads(1)


def _failure(begin: Callable[[int], object], number: int, count: int, data: Any) -> str:
    """Call a DataLoader's ``worker_init_fn``, which may ask torch for the worker's data set; return its traceback."""
    worker: Any = torch_utils.worker
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=count, seed=0, dataset=getattr(data, "data", data))
    try:
        begin(number)
    except Exception:
        return traceback.format_exc()
    finally:
        worker._worker_info = None  # what is read may not depend on the reader
    return ""


def _serve(connection: socket.socket, data: IndexedData, failure: str) -> None:
    """Answer requests until the parent closes the connection; where there was a ``failure``, with that."""
    while True:
        length = int.from_bytes(_exactly(connection, _LENGTH), "big")
        step, leaf, indices, seed = json.loads(_exactly(connection, length))
        if failure:
            transport.send(connection, failure, transport.ERROR)
            continue
        try:
            transport.send(connection, read(data, Reading(step, leaf, tuple(indices), seed)))
        except (ConnectionError, EOFError):
            raise
        except Exception:
            transport.send(connection, traceback.format_exc(), transport.ERROR)
        with suppress(Exception):
            sys.stdout.flush()


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)
