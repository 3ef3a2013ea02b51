"""The times of a schedule: five fields of cron in a time zone, also on the days on which clocks are changed.

A time of day that clocks leave out comes at the first moment after the gap; one that they show twice comes the first
time. Where the minute or the hour begins with ``*``, the fields mean an interval, which goes on through both hours and
leaves out what does not exist: as in Debian's cron.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from ...core.errors import SpecError
from ...core.options import near_matches
from ...core.units import plural
from ...policy.scheduled_runs import COUNTED, TimesDue

EXPECTED = "expected minute, hour, day of month, month and day of week, such as '30 6 * * mon-fri'"
UTC_NAME = "UTC"
NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = {
    "minute": (0, "0 to 59"),
    "hour": (1, "0 to 23"),
    "day-of-month": (2, "1 to 31, or L for the last day"),
    "month": (3, "1 to 12, or jan to dec"),
    "day-of-week": (4, "0 to 7, of which 0 and 7 are Sunday, or sun to sat"),
}
LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS, _DAYS = "jan feb mar apr may jun jul aug sep oct nov dec".split(), "sun mon tue wed thu fri sat".split()
_NAMES: tuple[list[str], ...] = ([], [], [], _MONTHS, _DAYS)
_WINDOWS_S = (3 * 3600.0, 3 * 86400.0, 100 * 86400.0, 3000 * 86400.0)
_LOCALTIME = "/etc/localtime"


class CronTimes:
    """The times that five fields of cron, or a name such as @daily, mean in a time zone. Raises SpecError."""

    def __init__(self, cron: str, zone: str) -> None:
        self.cron, self.zone = " ".join(cron.split()), zone
        self._zone = zone_of(zone)
        self._fields = NAMED.get(self.cron.lower(), self.cron)
        if self.cron.startswith("@") and self._fields == self.cron:
            raise SpecError(f"--schedule {cron[:80]!r} is unknown; expected five fields or one of {', '.join(NAMED)}")
        if (count := len(self._fields.split())) != 5:
            raise SpecError(f"--schedule {cron[:80]!r} has {plural(count, 'field')}; {EXPECTED}")
        try:
            CronSim(self._fields, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            what = str(error).removeprefix("Bad ")
            if what == "day-of-month" and self._has_a_day():
                raise SpecError(f"--schedule {cron[:80]!r} never comes: none of its months has such a day") from None
            at, there = FIELDS.get(what, (0, ""))
            if there and (backwards := _backwards(at, self._fields.split()[at])):
                raise SpecError(f"--schedule {cron[:80]!r}: its {what} has {backwards}") from None
            found = f"{what} {self._fields.split()[at]!r}" if there else what
            expected = f"expected {there}, or lists, ranges and steps of them" if there else EXPECTED
            raise SpecError(f"--schedule {cron[:80]!r}: its {found} cannot be read; {expected}") from None

    @property
    def fields(self) -> list[str]:
        """The five fields."""
        return self._fields.split()

    def _has_a_day(self) -> bool:
        """Whether the fields would be right if they meant any month."""
        minute, hour, day, _, weekday = self._fields.split()
        try:
            CronSim(" ".join((minute, hour, day, "*", weekday)), datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError:
            return False
        return True

    def after(self, after_s: float) -> Iterator[float]:
        """The times after a moment, in seconds since the Unix epoch."""
        if any(field.startswith("*") for field in self._fields.split()[:2]):
            yield from self._in_intervals(after_s)
            return
        last_s = after_s
        for found in CronSim(self._fields, datetime.fromtimestamp(after_s, self._zone)):
            time_s = found.timestamp()
            if time_s > last_s:  # else: the same moment again, or the second showing of the clock
                yield time_s
                last_s = time_s

    def _in_intervals(self, after_s: float) -> Iterator[float]:
        """The times of fields that mean an interval, from one change of the clock to the next."""
        begin_s = after_s
        while True:
            offset = self._offset(int(begin_s) + 1)
            wall = datetime.fromtimestamp(begin_s, UTC).replace(tzinfo=None) + offset
            for found in CronSim(self._fields, wall):
                time_s = (found - offset).replace(tzinfo=UTC).timestamp()
                if self._offset(time_s) != offset:
                    begin_s = self._change_s(int(begin_s) + 1, int(time_s)) - 1
                    break
                yield time_s
                begin_s = time_s
            else:
                return

    def _offset(self, time_s: float) -> timedelta:
        return datetime.fromtimestamp(time_s, self._zone).utcoffset() or timedelta()

    def _change_s(self, before_s: int, after_s: int) -> int:
        """The first second after the clock is changed, which it is between these two."""
        offset = self._offset(before_s)
        while after_s - before_s > 1:
            middle_s = (before_s + after_s) // 2
            before_s, after_s = (middle_s, after_s) if self._offset(middle_s) == offset else (before_s, middle_s)
        return after_s

    def next_s(self, after_s: float) -> float | None:
        """The first time after a moment; None where there is none for fifty years."""
        return next(self.after(after_s), None)

    def due(self, after_s: float, until_s: float) -> TimesDue:
        """The times after one moment, up to another and including it."""
        newest = next(filter(None, (self._newest(s, until_s) for s in self._starts(after_s, until_s))), None)
        if newest is None:
            return TimesDue(None, 0)
        count = 0
        for time_s in self.after(after_s):
            if time_s > until_s or count == COUNTED:
                break
            count += 1
        return TimesDue(newest, count)

    def _starts(self, after_s: float, until_s: float) -> Iterator[float]:
        """Where to look for the newest time from: near the end first, since there may be very many."""
        yield from (until_s - window_s for window_s in _WINDOWS_S if until_s - window_s > after_s)
        yield after_s

    def _newest(self, after_s: float, until_s: float) -> float | None:
        newest = None
        for time_s in self.after(after_s):
            if time_s > until_s:
                break
            newest = time_s
        return newest

    def explained(self) -> str:
        """What the fields mean: ``At 06:30 on Monday through Friday``."""
        return CronSim(self._fields, datetime(2000, 1, 1, tzinfo=UTC)).explain()

    def words(self, time_s: float) -> str:
        """A time as people of this zone write it: ``Fri 2026-11-27 06:30``."""
        at = datetime.fromtimestamp(time_s, self._zone)
        day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[at.weekday()]
        return f"{day} {at:%Y-%m-%d %H:%M}" + (f":{at:%S}" if at.second else "")


def _backwards(at: int, field: str) -> str:
    """What is said of a field with a range that ends before it begins, "" where it has none."""
    low, high = LIMITS[at]
    for part in field.lower().split(","):
        term, _, step = part.partition("/")
        ends = [_number(at, word) for word in term.split("-")]
        if len(ends) != 2 or None in ends or not low <= ends[1] < ends[0] <= high:  # type: ignore[operator]
            continue
        first, last = term.split("-")
        top = _NAMES[at][-1] if first in _NAMES[at] else str(6 if high == 7 else high)
        bottom = _NAMES[at][0] if last in _NAMES[at] else str(low)
        instead = f"{first if first == top else f'{first}-{top}'},{last if last == bottom else f'{bottom}-{last}'}"
        if (first, high) == ("7", 7):  # Sunday is 0, too
            instead = f"0-{last}"
        return f"the range '{term}', which ends before it begins" + ("" if step else f"; write '{instead}'")
    return ""


def _number(at: int, word: str) -> int | None:
    if word in _NAMES[at]:
        return _NAMES[at].index(word) + LIMITS[at][0]
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 4 else None


def checked(cron: str, zone: str, now_s: float) -> CronTimes:
    """The times for a new schedule. Raises SpecError for fields that name no day, and for steps beyond their field."""
    times = CronTimes(cron, zone)
    for name, field, (low, high) in zip(FIELDS, times.fields, LIMITS, strict=True):
        for part in field.split(","):
            step = part.partition("/")[2]
            if step and int(step) > high - low:
                raise SpecError(
                    f"--schedule {cron[:80]!r}: its {name} {part!r} has a step of {step}, and the field has only "
                    f"{low} to {high}; expected a step of 1 to {high - low}"
                )
    if times.next_s(now_s) is None:
        raise SpecError(f"--schedule {cron[:80]!r} names no time of the next fifty years; {EXPECTED}")
    return times


def zone_of(name: str) -> tzinfo:
    """A time zone by its name. Raises SpecError."""
    if name == UTC_NAME:
        return UTC  # it is known without the tables of the system
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = sorted(available_timezones())
        if not known:
            raise SpecError(
                f"--time-zone {name[:80]!r}: this machine has no table of time zones; `pip install tzdata` brings one, "
                f"and {UTC_NAME} needs none"
            ) from None
        raise SpecError(
            f"--time-zone {name[:80]!r} is unknown{near_matches(name, known)}; expected a name such as Europe/Berlin"
        ) from None


def own_zone() -> str:
    """The name of this machine's time zone; UTC where it has none."""
    linked = os.path.realpath(_LOCALTIME)
    found = os.environ.get("TZ", "").removeprefix(":") or linked.partition("/zoneinfo/")[2]
    try:
        zone_of(found or UTC_NAME)
    except SpecError:
        return UTC_NAME
    return found or UTC_NAME
