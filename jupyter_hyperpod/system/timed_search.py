"""Searches with patterns that people write, for a bounded time: some patterns need for ever for some lines."""

from __future__ import annotations

import re
import signal
import threading
import time

SEARCH_S = 0.05


class _TooLong(Exception):
    """A search was ended."""


def search(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Search for at most `SEARCH_S` of the main thread's processor time; raises TimeoutError.

    The engine handles signals meanwhile. Other threads, and Windows, have no such signals, and search without a limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGVTALRM"):
        return pattern.search(line)

    began_s = time.thread_time()

    def stop(*_: object) -> None:
        if time.thread_time() - began_s >= SEARCH_S:  # the timer counts other threads, too
            raise _TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S, SEARCH_S / 5)
        try:
            return pattern.search(line)
        finally:  # the alarm may come before this line has run; it is then caught below
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TooLong:
        raise TimeoutError(f"{pattern.pattern[:80]!r} needs more than {1000 * SEARCH_S:g} ms for a line") from None
    finally:
        signal.signal(signal.SIGVTALRM, before)
