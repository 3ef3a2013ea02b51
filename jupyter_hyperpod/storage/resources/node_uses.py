"""Reads what the nodes of a job have used, in places of time: in memory that does not grow with the time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import ProtocolError
from ...core.events import Event, decode_event
from .. import segments
from ..journal import replay_events
from ..store import JobStore
from .samples import KIND, Use, joined, uses

FOLDER = "resources"
PLACES, FEWEST_PLACES = 240, 48
NODES_IN_FULL = 64  # with more, each has fewer places
MOST_NODES = 1024
TAIL_BYTES = 1 << 18
WIDTHS = (1, 2, 10)  # seconds of a place; then twice as many, and so on


@dataclass
class NodeUses:
    """``nodes``: each node's use by number of a place, which is ``width_s`` long. ``left_out``: nodes beyond
    `MOST_NODES`."""

    width_s: int = WIDTHS[0]
    nodes: dict[str, dict[int, Use]] = field(default_factory=dict)
    newest: dict[str, Use] = field(default_factory=dict)
    left_out: int = 0
    _first: int | None = None  # the number of the first place
    _others: set[str] = field(default_factory=set)

    def add(self, event: Event) -> None:
        """Add an event's samples."""
        at = int(event.time_s // self.width_s)
        for node, use in uses(event.data):
            if node not in self.nodes and len(self.nodes) >= MOST_NODES:
                self._others.add(node)
                self.left_out = len(self._others)
                continue
            places = self.nodes.setdefault(node, {})
            places[at] = joined(places.get(at), use)
            self.newest[node] = use
        self._first = at if self._first is None else min(self._first, at)
        most = max(FEWEST_PLACES, PLACES * NODES_IN_FULL // max(NODES_IN_FULL, len(self.nodes)))
        while at - self._first >= most:
            self._widen()
            at = int(event.time_s // self.width_s)

    def _widen(self) -> None:
        wider = next((width for width in WIDTHS if width > self.width_s), 2 * self.width_s)
        times = wider // self.width_s
        for node, places in self.nodes.items():
            fewer: dict[int, Use] = {}
            for at, use in places.items():
                fewer[at // times] = joined(fewer.get(at // times), use)
            self.nodes[node] = fewer
        self._first, self.width_s = (self._first or 0) // times, wider


def fold(events: Iterable[Event]) -> NodeUses:
    """What these events say."""
    found = NodeUses()
    for event in events:
        found.add(event)
    return found


def read(job: JobStore) -> NodeUses:
    """What the nodes of a job have used."""
    return fold(replay_events(job.path / FOLDER, {}, (KIND,)))


def read_newest(job: JobStore) -> dict[str, Use]:
    """What each node has used last, from the end of the newest file."""
    folder = job.path / FOLDER
    last = {one.writer: folder / one.name for one in segments.in_order(segments.names(folder))}  # of each coordinator
    newest = max(last.values(), key=_changed_s, default=None)
    found: dict[str, Use] = {}
    if newest is None:
        return found
    with suppress(OSError), open(newest, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        for line in file.read().splitlines():
            with suppress(ProtocolError):  # the first may be cut off
                found.update(uses(decode_event(line).data))
    return found


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
