"""The index of steps: whole entries are read, damaged ones hide nothing, and the file stays small."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.storage.output import step_index
from jupyter_hyperpod.storage.output.step_index import (
    ENTRY_BYTES,
    StepIndex,
    StepRange,
    StepSpan,
    decode_spans,
    encode_span,
    read_spans,
    shortened,
    windows,
)

# what a worker prints: bytes, whether the session ends before, and by how much the step changes
PRINTED = st.lists(st.tuples(st.integers(1, 200_000), st.booleans(), st.integers(-2, 3)), max_size=60)
SPANS = st.lists(
    st.builds(
        lambda since, long, session, low, more: StepSpan(since, since + long, session, low, low + more),
        *(st.floats(0, 1e10), st.floats(0, 1e5)),
        *(st.integers(1, 2**32 - 1), st.integers(1, 2**63), st.integers(0, 1000)),
    ),
    max_size=20,
)


def test_entries_come_back() -> None:
    span = StepSpan(10.5, 12.25, 2, 3, 70)
    assert len(encode_span(span)) == ENTRY_BYTES and decode_spans(encode_span(span)) == [span]


@given(SPANS, st.data())
def test_what_is_torn_or_damaged_costs_only_its_own_entry(spans: list[StepSpan], data: st.DataObject) -> None:
    content = b"".join(map(encode_span, spans))
    assert decode_spans(content) == spans
    torn = data.draw(st.integers(0, len(content)))
    assert decode_spans(content[:torn]) == spans[: torn // ENTRY_BYTES]
    behind = decode_spans(content[:torn] + content)
    assert behind[len(behind) - len(spans) :] == spans, "an agent went on behind half an entry"
    if content:
        at, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        assert decode_spans(bytes(flipped)) == [s for place, s in enumerate(spans) if place != at // ENTRY_BYTES]


def told(directory: Path, printed: list[tuple[int, bool, int]], restart: int) -> list[tuple[float, int, int]]:
    """Write an index; the times, sessions and steps of what was printed."""
    index, session, step, made = StepIndex(directory, "node-1"), 1, 1, []
    for number, (size, next_session, change) in enumerate(printed):
        session, step = (session + 1, 1) if next_session else (session, max(1, step + change))
        if number == restart:
            index.close(float(number) - 0.5)
            index = StepIndex(directory, "node-1")
        index.note(float(number), session, step, size)
        made.append((float(number), session, step))
    index.close(float(len(printed)))
    return made


@given(PRINTED, st.integers(0, 60), st.integers(1, 3), st.integers(1, 20), st.integers(0, 9), st.data())
def test_the_windows_of_steps_leave_nothing_out(
    tmp_path_factory: pytest.TempPathFactory,
    printed: list[tuple[int, bool, int]],
    restart: int,
    session: int,
    first: int,
    more: int,
    data: st.DataObject,
) -> None:
    directory = tmp_path_factory.mktemp("index")
    made = told(directory, printed, restart)
    file = directory / f"node-1{step_index.SUFFIX}"
    content = file.read_bytes() if printed else b""
    damage = data.draw(st.sampled_from(["none", "cut", "entry lost", "shortened", "gone"]))
    spans = decode_spans(content)
    if damage == "cut":
        spans = decode_spans(content[: data.draw(st.integers(0, len(content)))])
    elif damage == "entry lost" and spans:
        del spans[data.draw(st.integers(0, len(spans) - 1))]
    elif damage == "shortened":
        spans = shortened(spans)
    elif damage == "gone":
        spans = []
    wanted = StepRange(session, first, first + more)
    found = windows(spans, wanted)
    assert found == sorted(found) and all(one[1] < other[0] for one, other in zip(found, found[1:], strict=False))
    for time_s, *label in made:
        if wanted.has(*label):
            assert any(since_s <= time_s <= until_s for since_s, until_s in found)


def test_a_whole_index_leads_to_the_place(tmp_path: Path) -> None:
    index = StepIndex(tmp_path, "node-1")
    for step in range(1, 1001):
        index.note(float(step), 1, step, 10_000)
    index.close(1001.0)
    spans = read_spans(tmp_path, "node-1")
    assert 50 < len(spans) < 100
    before, (since_s, until_s), after = windows(spans, StepRange(1, 500, 501))
    assert 480 < since_s < 500 and 501 < until_s < 520
    assert before[1] <= 1.0 and after[0] >= 1001.0, "and to what no entry speaks for"
    assert read_spans(tmp_path, "node-2") == []


def test_the_file_stays_small_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_index, "MOST_ENTRIES", 64)
    index = StepIndex(tmp_path, "node-1")
    for step in range(1, 5001):
        index.note(float(step), 1, step, step_index.SPAN_BYTES)
    index.close(5001.0)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 64 * ENTRY_BYTES and file.stat().st_mode & 0o777 == 0o600
    spans = read_spans(tmp_path, "node-1")
    assert spans[0].since_s == 1.0 and spans[-1].until_s == 5001.0
    assert spans[-1].low == spans[-1].high, "the newest are as fine as ever"


def test_sessions_that_cannot_be_joined_are_dropped_at_last() -> None:
    spans = [StepSpan(float(n), n + 1.0, n + 1, 1, 1) for n in range(40)]
    assert shortened(spans) == spans[10:]


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    index = StepIndex(tmp_path / "missing", "node-1")
    for step in range(10):
        index.note(float(step), 1, step + 1, step_index.SPAN_BYTES)
    index.close(10.0)
    assert os.listdir(tmp_path) == []
