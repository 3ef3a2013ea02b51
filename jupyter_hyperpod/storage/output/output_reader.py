"""Follows a job's output, in the journal and beside it, and says what was dropped before it was read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...core.events import Event
from ...core.units import format_bytes, plural
from ..journal import JournalFollower, follow_events
from ..segments import OUTPUT_WRITER
from ..store import JobStore
from .output_cap import DroppedOutput, Part, output_directory, parts


class OutputReader:
    """Reads the output files beside the journal. ``missed``: nodes of which the last `poll` could not read all."""

    def __init__(self, job: JobStore) -> None:
        self._directory = output_directory(job)
        self._follower: JournalFollower[Event] = follow_events(self._directory)
        self._newest: dict[str, tuple[Part, int]] = {}  # node -> the newest part read, and the bytes read of it
        self.missed: frozenset[str] = frozenset()

    def poll(self) -> list[Event]:
        """Return new output in the order of time, with a line wherever output was dropped before it was read."""
        events = self._follower.poll()
        if not events and not self._newest:
            return []
        there = parts(self._directory)
        gaps = {node: size for node, several in there.items() if (size := self._gap(node, several[0]))}
        self.missed = frozenset(gaps)
        self._newest.update({node: (there[node][0], 0) for node in gaps})
        for name, offset in self._follower.read_so_far().items():
            part = Part.of(self._directory / name)
            if part is not None and (part.node not in self._newest or part >= self._newest[part.node][0]):
                self._newest[part.node] = part, offset
        self._follower.forget({part.path.name for several in there.values() for part in several})
        return list(self._with_notices(events, gaps))

    def _gap(self, node: str, oldest: Part) -> int:
        """The number of bytes dropped unread. The part read last may have grown before it was dropped."""
        if node not in self._newest:
            return oldest.before
        last, offset = self._newest[node]
        return max(0, oldest.before - last.before - offset) if oldest > last else 0

    def _with_notices(self, events: list[Event], gaps: Mapping[str, int]) -> Iterator[Event]:
        waiting = dict(gaps)
        for event in events:
            if (size := waiting.pop(event.data["node"], 0)) and event.kind == "output.written":
                cap = DroppedOutput.of(self._directory, event.data["node"]).cap
                yield dropped_before(event, format_bytes(size), cap)
            yield event


class JournalGaps:
    """Puts a line where a follower of the journal comes too late for output. ``missed``: the nodes of the last time."""

    def __init__(self, job: JobStore) -> None:
        self._directory = output_directory(job)
        self._last: dict[str, int] = {}
        self.missed: frozenset[str] = frozenset()

    def told(self, events: list[Event]) -> list[Event]:
        """The events, in the order in which they came, with these lines."""
        found: list[Event] = []
        missed = set()
        for event in events:
            if event.writer.startswith(OUTPUT_WRITER):
                before = self._last.get(event.writer, 0)
                self._last[event.writer] = event.seq
                if event.seq > before + 1 and event.kind == "output.written":
                    missed.add(node := str(event.data["node"]))
                    gone = plural(event.seq - before - 1, "piece")
                    found.append(dropped_before(event, gone, DroppedOutput.of(self._directory, node).cap))
            found.append(event)
        self.missed = frozenset(missed)
        return found


def dropped_before(event: Event, gone: str, cap: int) -> Event:
    """A piece of output that says how much before this one was dropped; ``cap``: 0 where it is not known."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time_s))
    step = f", step {event.data['step']:,}" if "step" in event.data else ""
    most = f"the output of {event.data['node']} may take {format_bytes(cap) if cap else 'so much'} on the disk"
    text = f"[{gone} of older output were dropped here, up to {at}{step}: {most} (--output-cap)]\n"
    return replace(event, seq=0, data={**event.data, "stream": "stderr", "text": text})


def is_notice(event: Event) -> bool:
    """Whether it is no output but says that some was dropped."""
    return event.seq == 0
