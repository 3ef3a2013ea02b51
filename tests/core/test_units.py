"""Bytes, durations and money, there and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_hyperpod
from jupyter_hyperpod.core.errors import SpecError, UserError
from jupyter_hyperpod.core.units import (
    cut,
    few,
    first_line,
    format_bytes,
    format_duration,
    format_money,
    format_number,
    format_rate,
    parse_bytes,
    parse_duration,
    plural,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("8MB", 8_000_000), ("8MiB", 8 << 20), ("4096", 4096), ("1.5GiB", 3 << 29), (" 2 kB ", 2000), ("0", 0)],
)
def test_sizes_people_write(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30", 30), ("5min", 300), ("5m", 300), ("2h", 7200), ("1d", 86400)]
    + [("10 minutes", 600), ("1 hour", 3600), ("1h30m", 5400), ("2 days", 172800), ("1 h 5 min", 3900), ("3 secs", 3)],
)
def test_durations_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "1e3", "8 megabytes", "inf", "0x10", "1,000", "3 parsecs", "1h30", "5 ss", "h", "hours"]
)
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    for parse in (parse_bytes, parse_duration):
        with pytest.raises(SpecError, match=re.escape(repr(text)) + ".*for example"):
            parse(text)
    assert issubclass(SpecError, UserError)


@given(st.text(max_size=40))
def test_parsers_raise_nothing_but_their_own_error(text: str) -> None:
    for parse in (parse_bytes, parse_duration):
        try:
            assert parse(text) >= 0
        except SpecError:
            pass


@given(st.integers(min_value=0, max_value=10**18))
def test_printed_sizes_read_back_within_three_digits(count: int) -> None:
    printed = format_bytes(count)
    assert "e+" not in printed
    assert parse_bytes(printed) == pytest.approx(count, rel=0.006)


@given(st.integers(min_value=0, max_value=10**8))
def test_printed_durations_read_back_within_a_minute(seconds: int) -> None:
    assert abs(parse_duration(format_duration(seconds)) - seconds) < (60 if seconds >= 3600 else 1)


@given(st.floats(min_value=0, max_value=10**8))
def test_durations_never_print_a_sixtieth(seconds: float) -> None:
    printed = format_duration(seconds)
    assert not re.search(r"\b60 (s|min)\b|\b60\.0 s|\b1000 ms", printed)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (1.5, "1.5 s"),
        (0.9996, "1.0 s"),
        (59.96, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations_as_a_person_would_say_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1843.2, "1,840"),
        (999.6, "1,000"),
        (12.345, "12.3"),
        (2.5, "2.5"),
        (100, "100"),
        (0, "0"),
        (0.000278, "0.000278"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert format_number(value) == text
    assert format_rate(value, "sample") == f"{text} samples/s"


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_a_printed_number_reads_back_within_three_digits(value: float) -> None:
    printed = format_number(value)
    assert "e" not in printed and float(printed.replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_money_has_thousands_separators() -> None:
    assert format_money(25_600_000) == "$25,600,000"
    assert format_money(1.5) == "$1.50"
    assert format_money(-1234.4) == "-$1,234"
    assert format_money(0) == "$0"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "node", "0 nodes"),
        (1, "node", "1 node"),
        (2, "node", "2 nodes"),
        (1, "micro-batch", "1 micro-batch"),
        (1234, "micro-batch", "1,234 micro-batches"),
    ],
)
def test_counts_with_their_nouns(number: int, noun: str, text: str) -> None:
    assert plural(number, noun) == text


# a count with a noun in the plural, or in both numbers: "1 nodes", "3 member(s)"
CLUMSY = re.compile(r"\w\(s\)|\{'s' \* |\} (nodes|steps|peers|newcomers|jobs|spares|GPUs|incidents) ?[\"']")
ALLOWED = "of {"  # "1 of {…} nodes": a part of a whole


def test_no_sentence_counts_clumsily() -> None:
    package = Path(jupyter_hyperpod.__file__).parent
    lines = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in sorted(package.rglob("*.py"))
        if "bench" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if CLUMSY.search(line.replace("http(s)", "")) and ALLOWED not in line
    ]
    assert lines == []


def test_a_long_text_is_cut_and_says_by_how_much() -> None:
    assert cut("abc", 3) == "abc" and cut("abcd", 3) == "abc… (1 character more)"
    assert cut("x" * 3000, 1) == "x… (2,999 characters more)"


@given(st.text(), st.integers(0, 20))
def test_a_first_line_is_one_short_line_and_marks_what_is_left_out(text: str, most: int) -> None:
    line = first_line(text, most)
    assert len(line) <= most + 1 and len(line.splitlines()) <= 1
    assert line == text.strip() or line.endswith("…")


def test_few_names_and_the_number_of_the_others() -> None:
    assert few([]) == "" and few(["a", "b", "c"]) == "a, b, c"
    assert few([1, 2, 3, 4], 2) == "1, 2 and 2 more"
