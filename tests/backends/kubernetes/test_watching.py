"""Lines of a watch, and what has changed between two lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes.watching import ChunkedLines, differences, key, parse_change
from jupyter_hyperpod.core.errors import ClusterError


def thing(name: str, uid: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": version}}


LISTS = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.sampled_from("12"), st.sampled_from("789")), max_size=4
).map(lambda found: {key(one): one for one in (thing(name, *rest) for name, rest in found.items())})


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=6), st.lists(st.integers(0))
)
def test_lines_are_whole_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"rest"
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    reader = ChunkedLines()
    found = [line for start, end in zip(places, places[1:], strict=False) for line in reader.feed(data[start:end])]
    assert (found, reader.rest()) == (lines, b"rest")


def test_a_line_without_an_end_is_refused() -> None:
    reader = ChunkedLines(limit_bytes=100)
    with pytest.raises(ClusterError, match="100 bytes"):
        for _ in range(3):
            list(reader.feed(b"x" * 60))


def test_a_change_is_kind_and_object() -> None:
    line = json.dumps({"type": "ADDED", "object": {"kind": "Pod"}}).encode()
    assert parse_change(line) == ("ADDED", {"kind": "Pod"})
    for broken in (b"", b"{", b"[]", b"3", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": 3}', b"\xff"):
        assert parse_change(broken) is None


@given(st.binary(max_size=60))
def test_any_line_is_a_change_or_none(line: bytes) -> None:
    found = parse_change(line)
    assert found is None or isinstance(found[1], dict)


@given(LISTS, LISTS)
def test_differences_lead_from_one_list_to_the_other(
    before: dict[tuple[str, str], dict[str, Any]], after: dict[tuple[str, str], dict[str, Any]]
) -> None:
    now = dict(before)
    for kind, item in differences(before, after.values()):
        if kind == "DELETED":
            del now[key(item)]
        else:
            assert (key(item) in now) == (kind == "MODIFIED")
            now[key(item)] = item
    assert now == after


def test_one_that_was_made_anew_was_deleted_before() -> None:
    old, new = thing("a", "1", "7"), thing("a", "2", "9")
    assert list(differences({key(old): old}, [new])) == [("DELETED", old), ("ADDED", new)]
    assert list(differences({key(old): old}, [old])) == []
