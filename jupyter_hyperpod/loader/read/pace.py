"""How many connections, when to try again, when to ask twice. Pure: readings and random numbers are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime

GROW = 1.5
WORTH_IT = 1.12  # a larger number of connections has to bring this much more
BASE_DELAY_S = 0.05
LONGEST_DELAY_S = 8.0
HEDGE_FACTOR = 4.0
HEDGE_FLOOR_S = 0.5
WINDOW_S = 0.3
WIDEN, WIDE = 3, 16
CALM = 3  # windows without a refusal before there is one connection more again, in each of them
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Connections in use, the most allowed, and the best rate seen with fewer of them (bytes/s).

    `settled`: more are not tried any more. `before` is how many there were when the server asked for less, so many come
    back; 0 where it never did. `calm` counts the windows since it last did.
    """

    connections: int
    limit: int
    best: float = 0.0
    settled: bool = False
    before: int = 0
    calm: int = 0


def adjust(pace: Pace, rate: float, throttled: int) -> tuple[Pace, str]:
    """Return the pace after a window at `rate` bytes/s in which the server asked `throttled` times for less."""
    count = pace.connections
    if throttled:
        fewer = max(1, count // 2)
        lower = replace(pace, connections=fewer, before=max(pace.before, count), calm=0)
        return lower, f"{throttled} requests refused: {count} → {fewer}"
    if pace.before and (count < pace.before or pace.calm < CALM):
        return _recover(pace, rate)
    if pace.settled or count >= pace.limit:
        return pace, f"{count} connections are kept"
    if rate < pace.best * WORTH_IT:
        settled = replace(pace, settled=True)
        return settled, f"{count} connections bring no more than fewer did: kept"
    more = min(pace.limit, max(count + 1, int(count * GROW)))
    return replace(pace, connections=more, best=rate), f"{rate / 1e6:.0f} MB/s with {count}: trying {more}"


def _recover(pace: Pace, rate: float) -> tuple[Pace, str]:
    """Come back, one by one. A window in which nothing came says nothing: all may be waiting as they were told to."""
    count, calm = pace.connections, pace.calm + (rate > 0)
    if calm < CALM or rate <= 0 or count >= pace.before:
        return replace(pace, calm=calm), f"{count} connections are kept for now"
    return replace(pace, connections=count + 1, calm=calm), f"nothing was refused: {count} → {count + 1}"


def widen(pace: Pace) -> tuple[Pace, str]:
    """Return the pace once the first block is there: until then, other chunks would only have delayed it."""
    count = pace.connections
    if count < pace.before:
        return replace(pace, before=_wide(pace.before, pace)), f"{count} connections are kept for now"
    if pace.settled:
        return pace, f"{count} connections are kept"
    more = _wide(count, pace)
    return replace(pace, connections=more), f"the first block is there: {count} → {more} connections"


def _wide(count: int, pace: Pace) -> int:
    return max(count, min(pace.limit, WIDEN * count, WIDE))


def asked_delay_s(fields: Mapping[str, str], now_s: float) -> float | None:
    """Return how long a server asks to wait (Retry-After): seconds, or until a date by its own clock where it tells.

    `now_s` is the time since the epoch. None where nothing is asked for, or a time that is over.
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
    """Return how long to wait before trying again after `attempt` failures; `random` is in [0, 1).

    Exponential with full jitter; a server that names a time is obeyed, with up to a quarter more.
    """
    if retry_after_s is not None:
        return min(retry_after_s, LONGEST_WAIT_S) * (1 + random / 4)
    longest: float = min(LONGEST_DELAY_S, BASE_DELAY_S * 2 ** (attempt - 1))
    return longest * random


def should_hedge(running_s: float, median_s: float) -> bool:
    """True if a chunk has been under way for so long that asking again is likely to be faster."""
    return running_s > max(HEDGE_FLOOR_S, HEDGE_FACTOR * median_s)
