"""Joins old segments of a journal: facts are kept, of samples about one of `stride`. Pure.

Samples are the commits of steps and the metrics beside them. A kept commit speaks for those before it: its ``samples``
are theirs too, and ``steps`` says how many they are. So the fold of a thinned journal is the fold of the whole one, as
long as `stride` is at most the stride of the view's history. Of a run of steps, the first and the last are kept, and
those whose number `stride` divides. A run ends where the session, the generation or the world changes, where a step was
computed again, and where its update was skipped: these records are facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

COMMIT, METRIC = "step.committed", "metric.logged"
_WORDS = (f'"{COMMIT}"'.encode(), f'"{METRIC}"'.encode())
_SAME = ("session", "generation", "world_size")

Record = dict[str, Any]


def thinned(lines: Sequence[bytes], stride: int) -> Iterator[bytes]:
    """Yield the lines of one writer's consecutive segments without the samples that are not kept."""
    records = [_sample(line) for line in lines]
    changed = dict(_commits(records, stride)) | dict(_metrics(records, stride))
    for index, line in enumerate(lines):
        if index not in changed:
            yield line
        elif record := changed[index]:
            yield json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _sample(line: bytes) -> Record | None:
    """The record of a sample; None for any other line."""
    if not any(word in line for word in _WORDS):
        return None
    try:
        record: Record = json.loads(line)
        kind, data = record["kind"], record["data"]
        if kind == METRIC:
            return record if isinstance(data["values"], dict) and isinstance(data["step"], int) else None
        ordinary = kind == COMMIT and not data.get("skipped") and not data["redone"]
        whole = ordinary and all(isinstance(data[name], int) for name in ("step", "samples"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return record if whole else None


def _commits(records: Sequence[Record | None], stride: int) -> Iterator[tuple[int, Record | None]]:
    """Index -> the commit as it is kept, or None for one that is left out."""
    commits = [(index, record) for index, record in enumerate(records) if record and record["kind"] == COMMIT]
    steps = samples = 0  # of those left out since the last kept one
    for at, (index, record) in enumerate(commits):
        data = record["data"]
        inside = (
            0 < at < len(commits) - 1 and _follow(commits[at - 1][1], record) and _follow(record, commits[at + 1][1])
        )
        if inside and data["step"] % stride:
            steps += data.get("steps", 1)
            samples += data["samples"]
            yield index, None
        elif steps:
            more = {"steps": data.get("steps", 1) + steps, "samples": data["samples"] + samples}
            yield index, {**record, "data": {**data, **more}}
            steps = samples = 0


def _follow(before: Record, after: Record) -> bool:
    """Whether one commit follows the other in the same run."""
    first, second = before["data"], after["data"]
    same = all(first.get(name) == second.get(name) for name in _SAME)
    return same and second["step"] - second.get("steps", 1) == first["step"]


def _metrics(records: Sequence[Record | None], stride: int) -> Iterator[tuple[int, Record | None]]:
    """Index -> the newest values of `stride` steps, at the last of them; None for the records before it."""
    metrics = [(index, record) for index, record in enumerate(records) if record and record["kind"] == METRIC]
    for _, several in groupby(metrics, key=lambda metric: metric[1]["data"]["step"] // stride):
        *others, (index, last) = several
        values: dict[str, Any] = {}
        for other, record in others:
            values |= record["data"]["values"]
            yield other, None
        if others:
            yield index, {**last, "data": {**last["data"], "values": values | last["data"]["values"]}}
