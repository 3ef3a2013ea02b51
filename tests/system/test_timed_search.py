"""Searches for a bounded time: the time counts that the search itself takes, and nobody's alarm is lost."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import Any, cast

import pytest

from jupyter_hyperpod.system.timed_search import SEARCH_S, search

EVIL = re.compile("(x+x+)+y")


class Stalled:
    """A pattern whose search stands still, as that of a stopped process does."""

    pattern = "x"

    def __init__(self, others: int) -> None:
        self.others = others

    def search(self, line: str) -> re.Match[str] | None:
        """Search when the process's ``others`` threads have used several times the limit, or as long has passed."""
        begin_s = time.process_time() if self.others else time.monotonic()
        while (time.process_time() if self.others else time.monotonic()) - begin_s < 4 * SEARCH_S:
            threading.Event().wait(0.01)
        return re.search(self.pattern, line)


@pytest.mark.parametrize("others", [0, 1])
def test_a_search_that_waits_is_not_ended(others: int) -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            sum(range(10_000))

    threads = [threading.Thread(target=work) for _ in range(others)]
    for thread in threads:
        thread.start()
    try:
        assert search(cast(Any, Stalled(others)), "axb")
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_search_that_works_for_ever_is_ended() -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError, match="needs more than 50 ms for a line"):
            search(EVIL, "x" * 40)
    assert search(re.compile("y"), "xy"), "the next one has its own time"


def test_alarms_of_others_go_on() -> None:
    """A notebook may have set one."""
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    own = signal.getsignal(signal.SIGVTALRM)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000.0)
        assert search(re.compile("x"), "x")
        assert 900.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000.0
        signal.raise_signal(signal.SIGALRM)
        assert heard == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGVTALRM) == own and signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
