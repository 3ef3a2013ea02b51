"""The journal's vocabulary and codec."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.core.events import (
    COMMAND_FIELDS,
    EVENT_FIELDS,
    Command,
    Event,
    decode_command,
    decode_event,
    encode,
    to_json,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def records(draw: st.DrawFn) -> Event | Command:
    record, vocabulary = draw(st.sampled_from([(Event, EVENT_FIELDS), (Command, COMMAND_FIELDS)]))
    kind = draw(st.sampled_from(sorted(vocabulary)))
    data = {name: draw(json_values) for name in sorted(vocabulary[kind])} | draw(
        st.dictionaries(st.text(), json_values, max_size=2)
    )
    if kind == "step.committed":
        data |= {name: draw(st.integers(0, 2**53)) for name in ("step", "samples", "world_size", "redone")}
        data |= {"loss": draw(st.none() | st.floats(-1e9, 1e9)), "step_time_s": draw(st.floats(0, 1e9))}
    return record(draw(st.text(min_size=1)), draw(st.integers(1, 2**40)), draw(st.floats(0, 1e11)), kind, data)


def decode(record: Event | Command, line: bytes) -> Event | Command:
    return decode_event(line) if isinstance(record, Event) else decode_command(line)


@given(records())
def test_a_record_is_one_line_and_reads_back(record: Event | Command) -> None:
    line = encode(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(record, line) == record
    assert json.loads(line)["data"] == to_json(record)["data"]


@given(records(), st.data())
def test_no_prefix_of_a_line_passes_for_a_record(record: Event | Command, data: st.DataObject) -> None:
    line = encode(record)
    cut = data.draw(st.integers(0, len(line) - 2))
    with pytest.raises(ProtocolError):
        decode(record, line[:cut])


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_rubbish_raises_nothing_but_a_protocol_error(line: bytes) -> None:
    for read in (decode_event, decode_command):
        with pytest.raises(ProtocolError):
            read(line)


COMMIT: dict[str, Any] = {
    "step": 1,
    "generation": 1,
    "loss": 0.5,
    "loss_hex": "0x1p-1",
    "step_time_s": 1.0,
    "samples": 8,
    "world_size": 1,
    "redone": 0,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", "0.5"),
        ("loss", True),
        ("loss", [1]),
        ("step", None),
        ("step", 1.5),
        ("step_time_s", "1"),
        ("redone", None),
    ],
)
def test_a_step_whose_numbers_are_none_is_no_record(name: str, value: Any) -> None:
    line = {**GOOD, "kind": "step.committed", "data": COMMIT}
    assert decode_event(json.dumps(line)).data == COMMIT
    assert decode_event(json.dumps({**line, "data": COMMIT | {"loss": None}})).data["loss"] is None
    with pytest.raises(ProtocolError, match=f"{name} of step.committed is .*, expected a number"):
        decode_event(json.dumps({**line, "data": COMMIT | {name: value}}))
    with pytest.raises(ProtocolError, match="expected a number"):
        encode(Event("w", 1, 1.0, "step.committed", COMMIT | {name: value}))


GOOD: dict[str, Any] = {"v": 1, "writer": "w", "seq": 1, "time_s": 1.0, "kind": "warning.raised", "data": {"text": "x"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq": 0}, "malformed identity"),
        ({"seq": True}, "malformed identity"),
        ({"seq": 1.0}, "malformed identity"),
        ({"writer": 7}, "malformed identity"),
        ({"time_s": "now"}, "malformed identity"),
        ({"time_s": math.inf}, "not a journal line"),
        ({"time_s": math.nan}, "not a journal line"),
        ({"data": {"text": math.nan}}, "not a journal line.*NaN is not JSON"),
        ({"time_s": True}, "malformed identity"),
        ({"data": []}, "malformed kind or data"),
        ({"kind": ["x"]}, "malformed kind or data"),
        ({"kind": "job.exploded"}, "unknown kind 'job.exploded'; expected one of allocation.changed"),
        ({"data": {}}, "warning.raised lacks text"),
    ],
)
def test_each_malformed_field_is_named(changes: dict[str, Any], words: str) -> None:
    assert decode_event(json.dumps(GOOD)).data == {"text": "x"}
    with pytest.raises(ProtocolError, match=words):
        decode_event(json.dumps(GOOD | changes))


def test_a_time_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(ProtocolError, match="malformed identity"):
        decode_event(json.dumps(GOOD).replace("1.0", "1e999"))


def test_deeply_nested_line_is_refused_not_fatal() -> None:
    with pytest.raises(ProtocolError):
        decode_event(b"[" * 200_000)


def test_not_a_number_is_never_written() -> None:
    with pytest.raises(ProtocolError, match="metric.logged"):
        encode(Event("w", 1, 1.0, "metric.logged", {"step": 1, "values": {"loss": math.nan}}))


def test_unknown_kinds_are_never_written() -> None:
    with pytest.raises(ProtocolError, match="unknown kind 'stop'"):
        encode(Event("w", 1, 1.0, "stop", {"reason": ""}))
