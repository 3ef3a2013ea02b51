"""Joins samples of a journal with age: those of the same stretch of time become one, at its last moment. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from .samples import KIND, Use, as_event, joined, uses

Record = dict[str, Any]


def thinned(lines: Sequence[bytes], stride: int) -> Iterator[bytes]:
    """Yield the lines of consecutive segments: one for each stretch that is ``stride`` times as long as a sample's."""
    for stretch, several in groupby(lines, key=lambda line: _stretch(line, stride)):
        group = list(several)
        if stretch is None or len(group) == 1:
            yield from group
        else:
            yield _joined([json.loads(line) for line in group])


def _stretch(line: bytes, stride: int) -> tuple[float, int] | None:
    """The stretch of time to which a sample belongs; None for any other line."""
    try:
        record: Record = json.loads(line)
        every_s = record["data"]["every_s"]
        sample = record["kind"] == KIND and isinstance(record["data"]["nodes"], list)
        return (every_s, int(record["time_s"] // (every_s * stride))) if sample else None
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return None


def _joined(records: Sequence[Record]) -> bytes:
    found: dict[str, Use] = {}
    for record in records:
        for node, use in uses(record["data"]):
            found[node] = joined(found.get(node), use)
    last = records[-1]
    record = {**last, "data": as_event(found, last["data"]["every_s"])}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
