"""Decides the number of connections, the delay of retries, and when to hedge. Pure: randomness is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime

GROW = 1.5
WORTH_IT = 1.12  # more connections have to bring at least this much more
BASE_DELAY_S = 0.05
LONGEST_DELAY_S = 8.0
HEDGE_FACTOR = 4.0
HEDGE_FLOOR_S = 0.5
WINDOW_S = 0.3
WIDEN, WIDE = 3, 16
CALM = 3  # after this many windows without a refusal, each further one adds a connection
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Connections in use, the most allowed, and the best rate seen with fewer of them (bytes/s).

    `settled`: no more are tried. `before`: how many there were when the server last asked for fewer, and how many may
    come back; 0 where it never asked. `calm` counts the windows since then.
    """

    connections: int
    limit: int
    best: float = 0.0
    settled: bool = False
    before: int = 0
    calm: int = 0


def adjust(pace: Pace, rate: float, throttled: int) -> Pace:
    """Return the pace after a window at `rate` bytes/s in which the server refused `throttled` requests."""
    count = pace.connections
    if throttled:
        return replace(pace, connections=max(1, count // 2), before=max(pace.before, count), calm=0)
    if pace.before and (count < pace.before or pace.calm < CALM):
        return _recover(pace, rate)
    if pace.settled or count >= pace.limit:
        return pace
    if rate < pace.best * WORTH_IT:
        return replace(pace, settled=True)
    return replace(pace, connections=min(pace.limit, max(count + 1, int(count * GROW))), best=rate)


def _recover(pace: Pace, rate: float) -> Pace:
    """Add connections again, one by one. A window without bytes does not count: all may be told to wait."""
    calm = pace.calm + (rate > 0)
    more = calm >= CALM and rate > 0 and pace.connections < pace.before
    return replace(pace, connections=pace.connections + more, calm=calm)


def widen(pace: Pace) -> Pace:
    """Return the pace once the first block is loaded. Until then, other chunks would only have delayed it."""
    if pace.connections < pace.before:
        return replace(pace, before=_wide(pace.before, pace))
    return pace if pace.settled else replace(pace, connections=_wide(pace.connections, pace))


def _wide(count: int, pace: Pace) -> int:
    return max(count, min(pace.limit, WIDEN * count, WIDE))


def asked_delay_s(fields: Mapping[str, str], now_s: float) -> float | None:
    """Return how long a server asks to wait (Retry-After): seconds, or until a date, by its own clock where it sends
    that.

    `now_s` is the time since the epoch. None without such a request, or for a past time.
    """
    text = fields.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    until_s, there_s = _date_s(text), _date_s(fields.get("date", ""))
    wait_s = 0.0 if until_s is None else until_s - (now_s if there_s is None else there_s)
    return wait_s if wait_s > 0 else None


def _date_s(text: str) -> float | None:
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def delay_s(attempt: int, retry_after_s: float | None, random: float) -> float:
    """Return how long to wait before a retry after `attempt` failures; `random` is in [0, 1).

    Exponential with full jitter. A time that the server names is used instead, plus up to a quarter.
    """
    if retry_after_s is not None:
        return min(retry_after_s, LONGEST_WAIT_S) * (1 + random / 4)
    longest: float = min(LONGEST_DELAY_S, BASE_DELAY_S * 2 ** (attempt - 1))
    return longest * random


def should_hedge(running_s: float, median_s: float) -> bool:
    """True if a chunk has taken so long that a second request is probably faster."""
    return running_s > max(HEDGE_FLOOR_S, HEDGE_FACTOR * median_s)
