"""Runs pip, uv and ``venv`` so that they end with the one who waits for them, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress


def run_installer(
    command: Sequence[str], within_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what it said. It, and all that it starts, ends where this is interrupted.

    Raises OSError where it is not there, TimeoutExpired after ``within_s``.
    """
    from ...system.processes import die_with_parent  # it opens the C library, which most commands do not need

    parent = os.getpid()
    process: subprocess.Popen[str] = subprocess.Popen.__new__(subprocess.Popen)  # known before it is started
    # signals wait until it has started; those that another thread of this process gets do not
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with_parent(parent)

    try:
        process.__init__(  # type: ignore[misc]
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if env is None else dict(env),
            start_new_session=True,
            preexec_fn=begin,
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        out, err = process.communicate(timeout=within_s)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if getattr(process, "pid", None) is not None:
            _end(process)
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also what it started and left
    process.wait()
    for name in ("stdout", "stderr"):
        if (stream := getattr(process, name, None)) is not None:
            stream.close()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises as Ctrl-C does, so that what is half done is undone; only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
