"""Chooses what is shown of a job's output: a rank, a node, times or steps, lines with a pattern, the last lines."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as day_time
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ...core.errors import SpecError
from ...core.events import Event
from ...core.units import is_number, parse_duration, plural
from ...system.timed_search import search
from ..journal import files
from ..journal_search import read_kinds
from .step_index import StepRange

Shown = TypeVar("Shown")
MOMENTS = "write 30s, 10min, 2h or 1d for so long ago, 15:00 for a time of today, or a date such as 2026-11-25T21:00"
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
Commits = tuple[tuple[int, int, float], ...]  # the session, the step and the time of each


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """Output of ``rank`` and ``node`` (None: of all) from ``since_s`` to ``until_s`` (Unix epoch) that has ``pattern``.

    ``steps``: only what was printed in these; a reader of ranges (`output_range.py`) observes it.
    ``levels``: only lines of these; whoever has the lines observes it (`levels.py`), since it takes those before, too.
    ``tail``: only so many of the last lines; None: all.
    """

    rank: int | None = None
    since_s: float = -math.inf
    until_s: float = math.inf
    pattern: re.Pattern[str] | None = None
    tail: int | None = None
    node: str | None = None
    steps: StepRange | None = None
    levels: frozenset[str] | None = None

    def takes(self, event: Event) -> bool:
        """Whether the event is output of this rank, node and time."""
        if event.kind != "output.written" or not self.since_s <= event.time_s <= self.until_s:
            return False
        return self.rank in (None, event.data["rank"]) and self.node in (None, event.data["node"])

    def has(self, text: str) -> bool:
        """Whether a line, or a piece of output, has the pattern. Raises SpecError for one that takes too long."""
        try:
            return self.pattern is None or search(self.pattern, text) is not None
        except TimeoutError as error:
            raise SpecError(f"--grep: {error}; write a simpler one, without a repetition in a repetition") from None

    def last(self, shown: Iterable[Shown]) -> Iterator[Shown]:
        """The last of what would be shown; all of it where no number is given."""
        return iter(shown if self.tail is None else deque(shown, maxlen=self.tail))


def moment(text: str, now_s: float | None = None) -> float:
    """Unix time of ``"10min"`` (so long ago), ``"15:00"`` (the last one) or of a date such as ``2026-11-25T21:00``.

    Local without a zone. Raises SpecError for anything else, and for a number alone, which may be meant in many ways.
    """
    now_s = time.time() if now_s is None else now_s
    words = text.strip()
    age = words.removesuffix("ago")
    if is_number(age):
        number = age.strip()
        raise SpecError(f"{text!r} has no unit: {number}s, {number}min or {number}h? {MOMENTS}")
    with suppress(SpecError):
        return now_s - parse_duration(age)
    try:
        if clock := _CLOCK.fullmatch(words):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            return _last(day_time(hour, minute, second), now_s)
        return datetime.fromisoformat(words).timestamp()
    except (ValueError, OverflowError, OSError):
        raise SpecError(f"{text!r} is no time: {MOMENTS}") from None


def _last(clock: day_time, now_s: float) -> float:
    """The last time at which a clock on the wall has shown this: today, or yesterday."""
    today = datetime.fromtimestamp(now_s).date()
    at_s = datetime.combine(today, clock).timestamp()
    return at_s if at_s <= now_s else datetime.combine(today - timedelta(days=1), clock).timestamp()


def time_range(since: str | None, until: str | None, now_s: float | None = None) -> tuple[float, float]:
    """From one `moment` to another; None or "" is no bound. An ``until`` such as 15:00 is the first one after `since`.

    Raises SpecError where nothing can be between them.
    """
    since_s = moment(since, now_s) if since else -math.inf
    until_s = moment(until, now_s) if until else math.inf
    if until and until_s < since_s and _CLOCK.fullmatch(until.strip()):
        until_s = (datetime.fromtimestamp(until_s) + timedelta(days=1)).timestamp()
    if until_s < since_s:
        raise SpecError(f"nothing is between since {since} and until {until}: the end comes before the beginning")
    return since_s, until_s


def pattern(text: str) -> re.Pattern[str]:
    """The regular expression in ``text``. Raises SpecError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise SpecError(f"{text!r} is no regular expression: {error}; a backslash takes a character as it is") from None


def step_range(text: str) -> tuple[int, int | None]:
    """The first and the last step of ``"100:200"``, ``"100:"``, ``":200"`` or ``"100"``. Raises SpecError."""
    first, colon, last = text.partition(":")
    numbers = [part.strip() for part in (first, last)]
    if not any(numbers) or not all(part == "" or part.isdecimal() for part in numbers):
        raise SpecError(f"{text!r} is no range of steps: write 100:200, 100:, :200 or 100")
    low = int(numbers[0] or 1)
    high = int(numbers[1]) if numbers[1] else None if colon else low
    if high is not None and high < low:
        raise SpecError(f"{text!r} is no range of steps: {high} comes before {low}")
    return low, high


def chosen_steps(events: Path, first: int, last: int | None) -> StepRange:
    """These steps of a job's newest session. Raises SpecError where they were not computed."""
    commits = _commits(events)
    newest = max((session for session, _, _ in commits), default=1)
    done = max((step for session, step, _ in commits if session == newest), default=0)
    if first > done + 1:  # the next one is under way
        raise SpecError(f"step {first} is not there: the job has computed {plural(done, 'step')}")
    return StepRange(newest, first, last)


def times_of_steps(events: Path, steps: StepRange, before_s: float = math.inf) -> tuple[float, float]:
    """When a job computed these steps, with what was printed between, for output that does not name its step.

    From the commit of the step before, to that of the step after; of a long journal, to the nearest one that is kept.
    Where the session committed nothing before ``before_s``, the end is before the beginning.
    """
    done = [(step, at_s) for session, step, at_s in _commits(events) if session == steps.session]
    if before_s < math.inf and not any(at_s < before_s for _, at_s in done):
        return math.inf, -math.inf
    since_s = max((at_s for step, at_s in done if step < steps.first), default=-math.inf)
    until_s = min((at_s for step, at_s in done if steps.last is not None and step > steps.last), default=math.inf)
    return since_s, min(until_s, before_s)


def _commits(events: Path) -> Commits:
    sizes = []
    for path in files(events):
        with suppress(OSError):
            sizes.append((path.name, path.stat().st_size))
    return _read_commits(events, tuple(sorted(sizes)))


@lru_cache(maxsize=1)
def _read_commits(events: Path, _: tuple[tuple[str, int], ...]) -> Commits:
    """What was committed; read once for one request, as long as nothing is written."""
    found = read_kinds(events, ["step.committed"], without=("agent-",))
    return tuple((event.data.get("session", 1), event.data["step"], event.time_s) for event in found)
