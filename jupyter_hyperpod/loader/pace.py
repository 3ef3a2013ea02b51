"""How many connections, when to try again, when to ask twice. Pure: readings and random numbers are arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace

GROW = 1.5
WORTH_IT = 1.12  # a larger number of connections has to bring this much more
BASE_DELAY_S = 0.05
LONGEST_DELAY_S = 8.0
HEDGE_FACTOR = 4.0
HEDGE_FLOOR_S = 0.5
WINDOW_S = 0.3
WIDEN, WIDE = 3, 16


@dataclass(frozen=True, slots=True)
class Pace:
    """Connections in use, the most allowed, and the best rate seen with fewer of them (bytes/s)."""

    connections: int
    limit: int
    best: float = 0.0
    settled: bool = False


def adjust(pace: Pace, rate: float, throttled: int) -> tuple[Pace, str]:
    """Return the pace after a window at `rate` bytes/s in which the server asked `throttled` times for less."""
    count = pace.connections
    if throttled:
        fewer = max(1, count // 2)
        return replace(pace, connections=fewer, settled=True), f"{throttled} requests refused: {count} → {fewer}"
    if pace.settled or count >= pace.limit:
        return pace, f"{count} connections are kept"
    if rate < pace.best * WORTH_IT:
        settled = replace(pace, settled=True)
        return settled, f"{count} connections bring no more than fewer did: kept"
    more = min(pace.limit, max(count + 1, int(count * GROW)))
    return replace(pace, connections=more, best=rate), f"{rate / 1e6:.0f} MB/s with {count}: trying {more}"


def widen(pace: Pace) -> tuple[Pace, str]:
    """Return the pace once the first block is there: until then, other chunks would only have delayed it."""
    count = pace.connections
    if pace.settled:
        return pace, f"{count} connections are kept"
    more = max(count, min(pace.limit, WIDEN * count, WIDE))
    return replace(pace, connections=more), f"the first block is there: {count} → {more} connections"


def delay_s(attempt: int, retry_after_s: float | None, random: float) -> float:
    """Return how long to wait before trying again after `attempt` failures; `random` is in [0, 1).

    Exponential with full jitter; a server that names a time is obeyed, with up to a quarter more.
    """
    if retry_after_s is not None:
        return min(retry_after_s, 60.0) * (1 + random / 4)
    longest: float = min(LONGEST_DELAY_S, BASE_DELAY_S * 2 ** (attempt - 1))
    return longest * random


def should_hedge(running_s: float, median_s: float) -> bool:
    """True if a chunk has been under way for so long that asking again is likely to be faster."""
    return running_s > max(HEDGE_FLOOR_S, HEDGE_FACTOR * median_s)
