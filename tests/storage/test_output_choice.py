"""What `logs` shows of a job's output: a rank, a range of time or of steps, lines with a pattern, the last lines."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control.watch import OutputLines, OutputPieces
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.views import new_job_view
from jupyter_hyperpod.storage.journal import RecordWriter
from jupyter_hyperpod.storage.output.output_choice import (
    OutputChoice,
    chosen_steps,
    moment,
    pattern,
    step_range,
    time_range,
    times_of_steps,
)
from jupyter_hyperpod.storage.output.step_index import StepRange


def printed(text: str, at_s: float, rank: int = 0) -> Event:
    data = {"member": f"node-{rank}.a", "node": f"node-{rank}", "rank": rank, "stream": "stdout", "text": text}
    return Event("agent.1", 1, at_s, "output.written", data)


def lines(choice: OutputChoice, *events: Event) -> list[str]:
    return [line for _, line in choice.last(OutputLines(new_job_view("a"), choice).feed_all(events, ends=True))]


EVENTS = (
    printed("begin\nloss 2.5\n", 10.0),
    printed("los", 20.0),
    printed("s 2.0\nsaved", 21.0),
    printed("x\n", 30.0, 1),
)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (OutputChoice(), ["begin", "loss 2.5", "loss 2.0", "x", "saved"]),
        (OutputChoice(rank=1), ["x"]),
        (OutputChoice(pattern=pattern(r"loss \d")), ["loss 2.5", "loss 2.0"]),
        (OutputChoice(since_s=20.0, until_s=21.0), ["loss 2.0", "saved"]),
        (OutputChoice(tail=2), ["x", "saved"]),
        (OutputChoice(pattern=pattern("loss"), tail=1), ["loss 2.0"]),
        (OutputChoice(since_s=31.0), []),
    ],
)
def test_what_is_shown(choice: OutputChoice, expected: list[str]) -> None:
    assert lines(choice, *EVENTS) == expected


LEVELLED = (
    printed("INFO begin\nERROR it", 10.0),
    printed("step 1\n", 11.0, 1),
    printed(" failed\n  why\nstep 1\n", 12.0),
)


@pytest.mark.parametrize(
    ("levels", "text", "expected"),
    [
        ({"error"}, "", ["ERROR it failed", "  why"]),
        ({"error"}, "why", ["  why"]),
        ({"other"}, "", ["step 1", "step 1"]),
        ({"info", "error"}, "", ["INFO begin", "ERROR it failed", "  why"]),
        ({"debug"}, "", []),
    ],
)
def test_lines_have_levels(levels: set[str], text: str, expected: list[str]) -> None:
    choice = OutputChoice(levels=frozenset(levels), pattern=pattern(text))
    assert lines(choice, *LEVELLED) == expected
    pieces = "".join(event.data["text"] for event in OutputPieces(replace(choice, pattern=None)).of(LEVELLED))
    assert text or pieces == "".join(f"{line}\n" for line in expected)


def test_lines_of_a_spare_name_its_node() -> None:
    view = new_job_view("a") | {"nodes_wanted": 1, "maximum": 1, "spares_wanted": 1}
    spare = printed("loads\n", 1.0)
    spare.data["rank"] = None
    assert [*OutputLines(view).feed_all([spare, *EVENTS[:1]], ends=True)][:2] == [
        ("stdout", "[node-0] loads"),
        ("stdout", "begin"),
    ]


@given(st.lists(st.text("ab\r\n", max_size=6), max_size=8))
def test_where_output_is_cut_into_pieces_does_not_change_its_lines(pieces: list[str]) -> None:
    last_on_screen = [line.rstrip("\r").rpartition("\r")[2] for line in "".join(pieces).split("\n")]
    expected = last_on_screen if not "".join(pieces).endswith("\n") and any(pieces) else last_on_screen[:-1]
    shown = lines(OutputChoice(), *(printed(piece, float(at)) for at, piece in enumerate(pieces)))
    assert shown == expected


@pytest.mark.parametrize("begin", ["", "\r"])
def test_a_long_line_in_many_pieces_takes_time_in_proportion(begin: str) -> None:
    """The time of ten times as many pieces is compared, so that it holds on a slow machine, too."""
    piece = printed("z" * 4096, 2.0)

    def took(count: int) -> float:
        shown, begin_s = OutputLines(new_job_view("a")), time.process_time()
        list(shown.feed(printed(begin, 1.0)))
        for _ in range(count):
            assert not list(shown.feed(piece))
            shown.bar(piece)
        assert [len(line) for _, line in shown.feed(printed("\n", 3.0))] == [4096 * count]
        return time.process_time() - begin_s

    few = min(took(1000) for _ in range(3))
    assert took(10_000) < 40 * max(few, 0.01), "with a copy of the line for each piece it is 100 times"


def test_a_bar_is_what_was_last_written() -> None:
    shown = OutputLines(new_job_view("a"))
    seen = []
    for text in ("10 %", "\r20 %", "\r", "30", " %\r", "\r", "4"):
        list(shown.feed(printed(text, 1.0)))
        seen.append(shown.bar(printed(text, 1.0)))
    bars = [None, "20 %", "20 %", "30", "30 %", "30 %", "4"]
    assert seen == [None if bar is None else ("stdout", bar) for bar in bars]


def test_a_moment_is_an_age_or_a_date() -> None:
    assert moment("10min", 1000.0) == 400.0
    assert moment("2026-11-25T21:00:00+01:00") == 1795636800.0
    assert moment("2026-11-25T20:00:00Z") == 1795636800.0
    assert moment("2026-11-25") == moment("2026-11-25T00:00")
    for wrong in ("", "yesterday", "2026-13-01", "-5s"):
        with pytest.raises(SpecError, match="is no time"):
            moment(wrong)


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_range_of_steps_is_read(first: int, more: int) -> None:
    last = first + more
    assert step_range(f"{first}:{last}") == (first, last)
    assert step_range(f"{first}:") == (first, None)
    assert step_range(f":{last}") == (1, last)
    assert step_range(str(first)) == (first, first)


@given(st.text(alphabet="0123456789:-. x", max_size=12))
def test_no_text_is_taken_for_another_range(text: str) -> None:
    try:
        first, last = step_range(text)
    except SpecError as error:
        assert "is no range of steps" in str(error)
    else:
        assert first >= 0 and (last is None or last >= first)


def test_an_expression_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(SpecError, match="is no regular expression"):
        pattern("loss (")


def commits(directory: Path, *steps: tuple[int, int, float]) -> None:
    at = iter(time_s for _, _, time_s in steps)
    with RecordWriter(directory, "worker-node-0.a", Event, clock=lambda: next(at)) as writer:
        for session, step, _ in steps:
            record: dict[str, Any] = {
                "generation": 1,
                "loss": 0.5,
                "loss_hex": "0x1p-1",
                "step_time_s": 1.0,
                "samples": 4,
            }
            record |= {"world_size": 1, "samples": 4, "redone": 0, "session": session, "step": step}
            writer.append("step.committed", record)


def test_steps_are_found_in_the_newest_session_by_their_commits(tmp_path: Path) -> None:
    commits(tmp_path, (1, 1, 1.0), (1, 2, 2.0), (2, 1, 3.0), (2, 2, 4.0), (2, 3, 5.0), (2, 4, 6.0))
    assert chosen_steps(tmp_path, 2, 3) == StepRange(2, 2, 3)
    assert times_of_steps(tmp_path, StepRange(2, 2, 3)) == (3.0, 6.0)
    assert times_of_steps(tmp_path, StepRange(2, 1)) == (-math.inf, math.inf)
    assert times_of_steps(tmp_path, StepRange(2, 4, 9)) == (5.0, math.inf)
    assert chosen_steps(tmp_path, 5, None) == StepRange(2, 5), "it is under way"
    with pytest.raises(SpecError, match="step 6 is not there: the job has computed 4 steps"):
        chosen_steps(tmp_path, 6, 6)


def test_where_commits_were_thinned_the_nearest_ones_count(tmp_path: Path) -> None:
    commits(tmp_path, (1, 1, 1.0), (1, 64, 64.0), (1, 128, 128.0), (1, 130, 130.0))
    assert times_of_steps(tmp_path, StepRange(1, 70, 80)) == (64.0, 128.0)


def test_an_expression_that_never_ends_is_refused() -> None:
    choice = OutputChoice(pattern=pattern("(a+)+$"))
    with pytest.raises(SpecError, match="--grep: .* needs more than 50 ms for a line; write a simpler one"):
        choice.has("a" * 40 + "b")


def test_a_node_is_chosen() -> None:
    assert lines(OutputChoice(node="node-1"), *EVENTS) == ["x"]


@given(st.integers(10**9, 2 * 10**9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_time_of_day_is_the_last_one(now_s: int, hour: int, minute: int, second: int) -> None:
    at_s = moment(f"{hour}:{minute:02}:{second:02}", now_s)
    assert now_s - 25 * 3600 <= at_s <= now_s, "a day may have 25 hours"
    assert moment(f"{hour:02}:{minute:02}", now_s) <= now_s


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
def test_a_time_of_day_is_that_of_the_clock_on_the_wall(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        now_s = time.mktime((2026, 11, 25, 14, 0, 0, 0, 0, -1))
        assert moment("13:59", now_s) == now_s - 60
        assert moment("14:01", now_s) == now_s - 86400 + 60, "of yesterday"
        assert time_range("23:00", "1:00", now_s) == (now_s - 15 * 3600, now_s - 13 * 3600)
        night_s = now_s + 10.5 * 3600
        assert time_range("23:00", "01:00", night_s) == (night_s - 1.5 * 3600, night_s + 0.5 * 3600)
    time.tzset()


@given(st.integers(0, 10**5), st.sampled_from(["min", " min", "m", " minutes", "minute", " minutes ago", " mins"]))
def test_an_age_may_be_written_in_words(number: int, unit: str) -> None:
    assert moment(f"{number}{unit}", 1e9) == 1e9 - 60 * number


@given(st.text("0123456789:-T hms.aghoinuted", max_size=12), st.floats(0, 4e9))
def test_no_other_text_is_a_time(text: str, now_s: float) -> None:
    try:
        assert math.isfinite(moment(text, now_s))
    except SpecError as error:
        assert repr(text) in str(error) and "10min, 2h" in str(error)


@pytest.mark.parametrize("number", ["10", "1.5", " 10 ", "10 ago", "1795636800"])
def test_a_number_alone_is_no_time(number: str) -> None:
    with pytest.raises(SpecError, match="has no unit: .*s, .*min or .*h"):
        moment(number)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    assert time_range(None, "") == (-math.inf, math.inf)
    assert time_range("2h", "1h", 10_000.0) == (2_800.0, 6_400.0)
    with pytest.raises(SpecError, match="nothing is between since 1h and until 2h: the end comes before"):
        time_range("1h", "2h")
