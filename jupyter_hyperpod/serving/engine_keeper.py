"""The process between a replica and its engine: it starts the engine, and ends all of it when either of them ends.

Its standard input is a pipe whose other end only the replica has, so the pipe ends when the replica does, however that
ends. It adopts what the engine's processes leave behind, so that nothing of them is missed. The command of the engine
is its own arguments; no shell reads them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

from ..system.processes import adopt_orphans, descendants, follow_parent

GRACE_S = 5.0  # engines remove shared memory and sockets after SIGTERM
POLL_S = 0.02
CANNOT_START = 127


def main() -> int:
    """Entry point; returns the engine's exit status, 128 and its number for a signal."""
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the pipe says when to end; the engine has its own handlers
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    me = os.getpid()
    try:
        engine = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=lambda: follow_parent(me))
    except OSError as error:
        print(f"{sys.argv[1]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        return CANNOT_START
    status: int | None = None
    while status is None:
        ready = select.select([0, woken], [], [])[0]
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        status = _reap(engine.pid, status)
        if 0 in ready:
            break
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 10 * GRACE_S)):
        status = _end(me, engine.pid, number, patience_s, status)
    return 0 if status is None else status if status >= 0 else 128 - status


def _reap(engine: int, status: int | None) -> int | None:
    """Collect what has ended; return the engine's exit status, or `status` where it has not ended just now."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == engine:
                status = os.waitstatus_to_exitcode(found[1])
    return status


def _end(me: int, engine: int, number: int, patience_s: float, status: int | None) -> int | None:
    """Send a signal to all that is left, and to what comes meanwhile, and wait for its end."""
    deadline_s, told = time.monotonic() + patience_s, set()
    while (left := descendants(me)) and time.monotonic() < deadline_s:
        for pid in left:
            if pid not in told:
                told.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(POLL_S)
        status = _reap(engine, status)
    return _reap(engine, status)


if __name__ == "__main__":
    sys.exit(main())
