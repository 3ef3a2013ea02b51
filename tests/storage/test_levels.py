"""The level of a line of output: the formats that are known, what belongs to the line before, pieces that cut lines."""

from __future__ import annotations

import io
import json
import logging
import traceback
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.storage.output.levels import LEVELS, LevelReader, PieceLevels, level_of, parse

FORMATS = (
    logging.BASIC_FORMAT,
    "%(levelname)s %(message)s",
    "[%(levelname)s] %(message)s",
    "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
    "%(asctime)s %(levelname)-8s %(message)s",
    "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
    "%(name)s - %(levelname)s - %(message)s",
    "[%(levelname)s|%(filename)s:%(lineno)d] %(asctime)s >> %(message)s",
    "%(asctime)s | %(levelname)s | %(name)s:%(funcName)s:%(lineno)d - %(message)s",
    "%(asctime)s [%(process)d] %(levelname)s: %(message)s",
)
NUMBERS = {logging.CRITICAL: "error", logging.ERROR: "error", logging.WARNING: "warning", logging.INFO: "info"}
texts = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=30)


def read(text: str) -> list[str]:
    """The levels of the lines of one stream."""
    reader = LevelReader()
    return [reader.read(line) for line in text.splitlines()]


@given(st.sampled_from(FORMATS), st.sampled_from([*NUMBERS, logging.DEBUG]), texts)
def test_usual_formats_of_logging_say_their_level(layout: str, number: int, text: str) -> None:
    record = logging.LogRecord("train.main", number, "train.py", 7, text, None, None, "step")
    assert level_of(logging.Formatter(layout).format(record)) == NUMBERS.get(number, "debug")


@given(st.sampled_from(["error", "warning", "info", "debug"]), texts, st.booleans())
def test_json_lines_say_their_level(level: str, text: str, upper: bool) -> None:
    shown = level.upper() if upper else level
    assert level_of(json.dumps({"message": f'"level": "{text}"', "severity": shown})) == level
    assert level_of(json.dumps({"level": shown, "msg": text})) == level


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-27 14:41:12.345 | SUCCESS  | mod:func:12 - text", "info"),
        ("2026-11-27T14:41:12.3Z [warning  ] event    k=1", "warning"),
        ("I1127 14:41:12.345678 139 file.cc:12] text", "info"),
        ("F20261127 14:41:12.345678 139 file.cc:12] text", "error"),
        ("[rank0]:[W1127 14:41:12.345 ProcessGroup.cpp:1250] text", "warning"),
        ("\x1b[32m2026-11-27 14:41:12\x1b[0m | \x1b[31mERROR\x1b[0m | text", "error"),
        ('time="2026-11-27T14:41:12Z" level=warning msg="text"', "warning"),
        ("node-1:12:34 [0] NCCL WARN text", "warning"),
        ("11/27/2026 14:41:12 - DEBUG - __main__ - text", "debug"),
        ("Nov 27 14:41:12 host prog[1]: ERROR text", "error"),
        ("(EngineCore pid=3) INFO: text", "info"),
        ("/a/b.py:12: UserWarning: careful", "warning"),
        ("warning: text", "warning"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", "error"),
        ("step 12 loss 3.2", None),
        ("errors: 0, warnings: 0", None),
        ("Information about the run", None),
        ("success: 0.93", None),
        ("2026-11-27 14:41:12 epoch 1", None),
        ('{"step": 1, "level": "high"}', None),
        ("  WARNING: part of something else", None),
        ("", None),
    ],
)
def test_a_line_says_its_level(line: str, level: str | None) -> None:
    assert level_of(line) == level


def raised(text: str) -> str:
    try:
        try:
            raise ValueError(text)
        except ValueError as error:
            raise RuntimeError("while that was handled") from error
    except RuntimeError:
        return traceback.format_exc()


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_traceback_has_the_level_of_its_record(level: str) -> None:
    stream = io.StringIO()
    logger = logging.Logger("own")
    logger.addHandler(logging.StreamHandler(stream))
    logger.handlers[0].setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    try:
        raise ValueError("text")
    except ValueError:
        getattr(logger, level)("it failed", exc_info=True)
    assert set(read(stream.getvalue())) == {level} and "Traceback" in stream.getvalue()
    assert read(stream.getvalue() + "step 3\n")[-1] == "other"


def test_a_traceback_of_nobody_is_an_error_to_its_last_line() -> None:
    lines = read(f"INFO begin\n{raised('a')}step 3\n  indented\nINFO on\n  and more\n\nthat is all\n")
    assert lines[0] == "info" and lines[-6:] == ["other", "other", "info", "info", "other", "other"]
    assert set(lines[1:-6]) == {"error"} and len(lines) > 15
    ranked = "".join(f"[rank1]: {line}" for line in raised("b").splitlines(keepends=True))
    assert set(read(ranked)) == {"error"}


def test_what_warns_and_its_line_of_code_are_a_warning() -> None:
    stream = io.StringIO()
    stream.write(warnings.formatwarning("careful", DeprecationWarning, "a.py", 3, "call()"))
    assert read(stream.getvalue()) == ["warning", "warning"]


def piece(number: int, text: str, member: str = "a") -> Event:
    data = {"member": member, "node": "node-1", "rank": 0, "stream": "stdout", "text": text}
    return Event("output-node-1.ab", number, float(number), "output.written", data)


NO_END = "no end"


class Slow(PieceLevels):
    """Reads every line."""

    def _has_none(self, text: str) -> bool:
        return False


lines = st.sampled_from(
    [
        "Traceback (most recent call last):\n",
        "ValueError: x\n",
        NO_END,
        "\r10%\n",
        "WARNING d\n",
        "INFO a\n",
        "ERROR b\n",
        "plain\n",
        "  more\n",
        "\r  10%\r  20%\n",
        "W1127 14:41:12.3 1 a] c\r\n",
        "\n",
    ]
)


@settings(max_examples=500)
@given(st.lists(lines, max_size=12), st.lists(st.integers(0, 12), max_size=8), st.sampled_from(LEVELS))
def test_pieces_that_end_with_lines_may_be_cut_anywhere_between_them(
    said: list[str], cuts: list[int], level: str
) -> None:
    """And each line has exactly one level."""
    cut = sorted({0, len(said), *(min(one, len(said)) for one in cuts)})
    pieces = [piece(at, "".join(said[low:high])) for at, (low, high) in enumerate(zip(cut, cut[1:], strict=False), 1)]
    whole = [piece(1, "".join(said))]

    def kept(events: list[Event], levels: set[str]) -> str:
        return "".join(event.data["text"] for event in PieceLevels(levels).of(events))

    assert NO_END in said or kept(pieces, {level}) == kept(whole, {level})
    assert kept(pieces, {level}) == "".join(event.data["text"] for event in Slow({level}).of(pieces))
    assert kept(pieces, set(LEVELS)) == "".join(said)
    assert sum(len(kept(whole, {one})) for one in LEVELS) == len("".join(said))


def test_a_line_in_several_pieces_has_the_level_of_its_beginning() -> None:
    pieces = [piece(1, "WARNING a"), piece(2, "other\n", "b"), piece(3, " and on"), piece(4, " ERROR\nplain\n")]
    assert [event.data["text"] for event in PieceLevels({"warning"}).of(pieces)] == ["WARNING a", " and on", " ERROR\n"]
    assert [event.data["text"] for event in PieceLevels({"other"}).of(pieces)] == ["other\n", "plain\n"]


def test_levels_are_named_in_words() -> None:
    assert parse("error, warn") == {"error", "warning"} and parse("CRITICAL") == {"error"}
    with pytest.raises(SpecError, match=r"'warnning' is no level \(did you mean warning\?\)"):
        parse("warnning")
    with pytest.raises(SpecError):
        parse("")


@given(st.text(max_size=400))
def test_any_text_has_a_level(text: str) -> None:
    assert LevelReader().read(text) in LEVELS
    assert "".join(event.data["text"] for event in PieceLevels(LEVELS).of([piece(1, text)])) == text
