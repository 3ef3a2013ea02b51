"""The times that five fields of cron mean, compared with a search through all minutes in zones that change clocks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.control.schedules import cron_times
from jupyter_hyperpod.control.schedules.cron_times import CronTimes
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.policy.scheduled_runs import COUNTED

# around days on which clocks are changed: at 2 and 3 o'clock, at midnight, by half an hour, and by a whole day
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("America/Havana", datetime(2025, 3, 9, 5, tzinfo=UTC)),
    ("America/Havana", datetime(2025, 11, 2, 5, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 5, 1, tzinfo=UTC)),
]
MINUTE = timedelta(minutes=1)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    lists = st.lists(one, min_size=1, max_size=3).map(lambda found: ",".join(map(str, found)))
    ranges = st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, high).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), lists, ranges, steps)


crons = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)
daily = st.tuples(field(0, 59), field(0, 4)).map(lambda pair: f"{pair[0]} {pair[1]} * * *")


def allowed(text: str, low: int, high: int) -> set[int]:
    """The numbers that a field means, read in another way than cronsim does."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        bounds = (low, high) if span == "*" else (int(first), int(last or first))
        found.update(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return found


def by_minutes(cron: str, zone: str, after: datetime, until: datetime) -> Iterator[float]:
    """Each minute whose clock fits; of times of day, those that clocks leave out at once after the gap, none twice."""
    minute, hour, day, month, weekday = cron.split()
    sets = [allowed(*one) for one in ((minute, 0, 59), (hour, 0, 23), (day, 1, 31), (month, 1, 12), (weekday, 0, 6))]
    either = not (day.startswith("*") or weekday.startswith("*"))
    interval = minute.startswith("*") or hour.startswith("*")

    def fits(wall: datetime) -> bool:
        days = (wall.day in sets[2], wall.isoweekday() % 7 in sets[4])
        return (
            wall.minute in sets[0] and wall.hour in sets[1] and wall.month in sets[3] and (any if either else all)(days)
        )

    at = after.replace(second=0, microsecond=0)
    before = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    while (at := at + MINUTE) <= until:
        aware = at.astimezone(ZoneInfo(zone))
        wall, skipped = aware.replace(tzinfo=None), False
        while not interval and (before := before + MINUTE) < wall:
            skipped = skipped or fits(before)
        if skipped or (fits(wall) and (interval or not aware.fold)):
            yield at.timestamp()
        before = wall


@settings(max_examples=60)
@given(st.one_of(daily, crons), st.sampled_from(CHANGES), st.integers(0, 26 * 60), st.integers(1, 28 * 60))
def test_times_are_those_of_a_search_through_all_minutes(
    cron: str, change: tuple[str, datetime], before_m: int, length_m: int
) -> None:
    zone, changed = change
    after = changed - before_m * MINUTE
    until = after + length_m * MINUTE
    times = CronTimes(cron, zone)
    found = list(takewhile(lambda time_s: time_s <= until.timestamp(), times.after(after.timestamp())))
    assert found == list(by_minutes(cron, zone, after, until))
    due = times.due(after.timestamp(), until.timestamp())
    assert due.newest_s == (found[-1] if found else None) and due.count == min(len(found), COUNTED)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # 2026-03-29: 02:00 to 02:59 is left out; 2026-10-25: they are there twice
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30", "2026-03-31T00:30"]),
        ("0,30 2,3 * * *", "2026-03-29T00:30", ["2026-03-29T01:00", "2026-03-29T01:30", "2026-03-30T00:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30", "2026-10-27T01:30"]),
        ("30 2 * * *", "2026-10-25T01:10", ["2026-10-26T01:30", "2026-10-27T01:30", "2026-10-28T01:30"]),
        ("*/30 2 * * *", "2026-10-24T23:59", ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00"]),
        ("30 6 * * mon-fri", "2026-11-26T12:00", ["2026-11-27T05:30", "2026-11-30T05:30", "2026-12-01T05:30"]),
        ("0 8 * * mon#1", "2026-11-26T12:00", ["2026-12-07T07:00", "2027-01-04T07:00", "2027-02-01T07:00"]),
        ("@monthly", "2026-11-26T12:00", ["2026-11-30T23:00", "2026-12-31T23:00", "2027-01-31T23:00"]),
    ],
)
def test_times_in_berlin(cron: str, after: str, expected: list[str]) -> None:
    begin = datetime.fromisoformat(after).replace(tzinfo=UTC).timestamp()
    found = islice(CronTimes(cron, "Europe/Berlin").after(begin), 3)
    assert [datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M") for time_s in found] == expected


def test_a_year_of_minutes_is_looked_through_in_no_time() -> None:
    until_s = datetime(2026, 11, 26, 12, 0, 30, tzinfo=UTC).timestamp()
    due = CronTimes("* * * * *", "Europe/Berlin").due(until_s - 365 * 86400, until_s)
    assert due.newest_s == until_s - 30 and due.count == COUNTED


@pytest.mark.parametrize(
    ("cron", "zone", "said"),
    [
        ("30 6 * *", "UTC", "has 4 fields; expected minute, hour"),
        ("0 30 6 * * *", "UTC", "has 6 fields"),
        (
            "*/70 * * * *",
            "UTC",
            "its minute '*/70' has a step of 70, and the field has only 0 to 59; expected",
        ),
        ("0 22-6 * * *", "UTC", "its hour has the range '22-6', which ends before it begins; write '22-23,0-6'"),
        ("0 0 * * 7-2", "UTC", "its day-of-week has the range '7-2', which ends before it begins; write '0-2'"),
        (
            "0 6 * * fri-mon",
            "UTC",
            "the range 'fri-mon', which ends before it begins; write 'fri-sat,sun-mon'",
        ),
        ("0 6 * dec-feb/2 *", "UTC", "its month has the range 'dec-feb', which ends before it begins"),
        ("0 25 * * *", "UTC", "its hour '25' cannot be read; expected 0 to 23, or lists"),
        ("61 6 * * *", "UTC", "its minute '61' cannot be read; expected 0 to 59"),
        ("30 6 * * mox", "UTC", "its day-of-week 'mox' cannot be read; expected 0 to 7"),
        ("@dayly", "UTC", "is unknown; expected five fields or one of @hourly"),
        ("0 0 32 2 *", "UTC", "its day-of-month '32' cannot be read; expected 1 to 31"),
        ("0 0 30 2 *", "UTC", "'0 0 30 2 *' never comes: none of its months has such a day"),
        ("* * 31 4,jun *", "UTC", "never comes: none of its months has such a day"),
        ("0 0 29 2 1#5,2L", "UTC", ""),
        ("30 6 * * *", "Europe/Berlinn", "is unknown (did you mean Europe/Berlin?)"),
        ("30 6 * * *", "../etc/passwd", "is unknown"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(cron: str, zone: str, said: str) -> None:
    if not said:
        assert CronTimes(cron, zone)
        return
    with pytest.raises(SpecError) as raised:
        cron_times.checked(cron, zone, 0.0)
    assert said in str(raised.value)


def test_a_day_that_never_comes_is_refused() -> None:
    with pytest.raises(SpecError, match="names no time of the next fifty years"):
        cron_times.checked("0 0 */20 * 1L", "UTC", 0.0)


def test_the_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", ":Asia/Kathmandu")
    assert cron_times.own_zone() == "Asia/Kathmandu"
    monkeypatch.setenv("TZ", "CET-1CEST")
    assert cron_times.own_zone() == "UTC"
    monkeypatch.delenv("TZ")
    linked = tmp_path / "zoneinfo" / "Europe" / "Paris"
    linked.parent.mkdir(parents=True)
    linked.touch()
    (tmp_path / "localtime").symlink_to(linked)
    monkeypatch.setattr(cron_times, "_LOCALTIME", str(tmp_path / "localtime"))
    assert cron_times.own_zone() == "Europe/Paris"
