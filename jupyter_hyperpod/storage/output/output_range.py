"""Reads a range of a job's output: finds its place by time, reads from there, and keeps one slice per file in memory.

The output of a node is in its files of the journal, and then in files beside it (`output_relay.py`). Each file is
sorted by time, so a place in it is found by halving; files that an agent writes one after the other are, too. An agent
that begins with a clock that was set back begins another row of files: rows are merged by time.
"""

from __future__ import annotations

import heapq
import math
import os
import re
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, TypeVar

from ...core.errors import ProtocolError
from ...core.events import Event, decode_event
from ...core.units import format_bytes
from .. import segments
from ..journal import LINE_LIMIT_BYTES
from ..segments import OUTPUT_WRITER
from ..store import JobStore
from .levels import PieceLevels
from .output_cap import DroppedOutput, output_directory, parts, rows
from .output_choice import OutputChoice, times_of_steps
from .output_reader import dropped_before, is_notice
from .step_index import StepRange, Window, labelled_since_s, read_spans, windows

Shown = TypeVar("Shown")
Place = tuple[float, str, int]  # in the output of a job: the time, the writer and the number of a piece
Passed = tuple[Event, bool]  # what a reader passes, and whether it is chosen
AGENT = "agent-"  # writers of jobs of earlier versions, whose output is among the facts of their agents
SLICE_BYTES = 1 << 16
LEAD_BYTES = 1 << 14  # before what is looked for, in which a record begins that goes on in it
PROBE_BYTES = 1 << 12
TAIL_BYTES = 1 << 18  # of each node, the first time that the last lines are looked for
FIRST_LOOK_BYTES = 1 << 22  # of all nodes together then, though at least `PROBE_BYTES` of each
MOST_CHUNK_BYTES = 1 << 22  # of each node, read at once by a reader that goes back
HEAD_BYTES = 600  # of a line, in which its time is
SKIPPED = 1000  # lines that are no output, of which one is passed on: so that a reader gets on, and can stop
ALWAYS: list[Window] = [(-math.inf, math.inf)]
OUTPUT = "output.written"
_KIND = f'"{OUTPUT}"'.encode()
_TIME = re.compile(rb'\{"v":\d+,"writer":"[^"\\\n]+","seq":\d+,"time_s":(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?),')
_HEX = len(".12345678")


@dataclass(frozen=True, slots=True)
class OutputSource:
    """Files of one node that follow each other. ``dropped``: bytes that were before the first, and are gone:
    the node's output may take only so many (``cap``).

    ``unlabelled``: when output without a step counts, where steps are chosen.
    """

    node: str
    paths: tuple[Path, ...]
    windows: Sequence[Window]
    steps: StepRange | None = None
    unlabelled: Window = (-math.inf, math.inf)
    dropped: int = 0
    cap: int = 0

    def events(self) -> Iterator[Passed]:
        """What is in the windows, with a line where some of it was dropped."""
        if self.dropped:
            yield from ((notice, True) for notice in self._notice())
        for since_s, until_s in self.windows:
            for event in _events(self.paths, since_s, until_s):
                yield event, self._has(event)

    def _has(self, event: Event) -> bool:
        if self.steps is None:
            return True
        session, step = event.data.get("session"), event.data.get("step")
        if session is None or step is None:
            return self.unlabelled[0] <= event.time_s <= self.unlabelled[1]
        return self.steps.has(session, step)

    def begin_s(self) -> float:
        """When the first line of output was written; inf where there is none."""
        return next(
            (event.time_s for event in _events(self.paths, -math.inf, math.inf) if event.kind == OUTPUT), math.inf
        )

    def _notice(self) -> Iterator[Event]:
        everything = _events(self.paths, -math.inf, math.inf)
        first = next((event for event in everything if event.kind == OUTPUT), None)
        if first is None or not any(since_s < first.time_s for since_s, _ in self.windows):
            return
        kept = StepRange(first.data.get("session", 1), 1, first.data.get("step", 1))
        if self.steps is None or (self.steps.session, self.steps.first) <= (kept.session, kept.last or 1):
            yield dropped_before(first, format_bytes(self.dropped), self.cap)

    def back(self, size: int) -> float:
        """The time from which on about the last ``size`` bytes of the windows are; -inf where there is less."""
        left = size
        for since_s, until_s in reversed(self.windows):
            for path in reversed(self.paths):
                begin, end = position(path, since_s), position(path, math.nextafter(until_s, math.inf))
                while begin < end - left:
                    if (found := _line_at(path, end - left, end)) is not None:
                        return max(since_s, found[1])
                    left *= 4  # in the middle of one long line
                left -= max(0, end - begin)
        return -math.inf


def sources(job: JobStore, choice: OutputChoice) -> list[OutputSource]:
    """Where the chosen output is. Raises SpecError where the chosen steps were not computed."""
    beside = output_directory(job)
    of_node: dict[str, list[tuple[Path, ...]]] = {}
    there = (s for s in segments.in_order(segments.names(job.events)) if s.writer.startswith((AGENT, OUTPUT_WRITER)))
    for writer, several in groupby(there, key=lambda segment: segment.writer):
        paths = tuple(job.events / segment.name for segment in several)
        node = writer.removeprefix(AGENT) if writer.startswith(AGENT) else writer.removeprefix(OUTPUT_WRITER)
        of_node.setdefault(node[:-_HEX], []).append(paths)
    for node, kept in (kept_parts := parts(beside)).items():
        of_node.setdefault(node, []).extend(tuple(part.path for part in row) for row in rows(kept))
    steps, labelled_s = choice.steps, math.inf if choice.steps is None else labelled_since_s(beside)
    unlabelled = ALWAYS[0] if steps is None else times_of_steps(job.events, steps, labelled_s)
    made = []
    for node in sorted(of_node if choice.node is None else of_node.keys() & {choice.node}):
        when = windows(read_spans(beside, node), steps) if steps and labelled_s < math.inf else [unlabelled]
        cut = [(max(since_s, choice.since_s), min(until_s, choice.until_s)) for since_s, until_s in when]
        cut = [window for window in cut if window[0] <= window[1]]
        found = [OutputSource(node, paths, cut, steps, unlabelled) for paths in of_node[node]]
        gone = DroppedOutput.of(beside, node)
        if dropped := gone.total(kept_parts.get(node, [])):
            place = min(range(len(found)), key=lambda index: found[index].begin_s())
            found[place] = replace(found[place], dropped=dropped, cap=gone.cap)
        made += found
    return made


def read_output(job: JobStore, choice: OutputChoice, after: Place | None = None) -> Iterator[Event]:
    """Yield the chosen output of all levels in the order of time; lines that do not decode are left out.

    ``after``: only what follows this place. Raises SpecError.
    """
    return (event for event, chosen in pass_output(job, replace(choice, levels=None), after) if chosen)


def pass_output(job: JobStore, choice: OutputChoice, after: Place | None = None) -> Iterator[Passed]:
    """As `read_output`, but with what is read and not chosen: whoever counts it can stop at each piece.

    Where levels are chosen, pieces hold only lines that have them.
    """
    if after is None:
        return _levelled(_passed(sources(job, choice), choice), choice, None)
    if choice.levels is None:
        choice = replace(choice, since_s=max(choice.since_s, after[0]))
        return _passed(sources(job, choice), choice, after)
    there = sources(job, choice)
    began_s = _led([_until(source, after[0]) for source in there], after[0])
    return _levelled(_passed([_from(source, began_s) for source in there], choice), choice, after)


def _levelled(passed: Iterable[Passed], choice: OutputChoice, after: Place | None) -> Iterator[Passed]:
    """The same behind a place, of chosen pieces those lines that have the levels; a piece without one is not chosen."""
    levels = None if choice.levels is None else PieceLevels(choice.levels)
    for event, is_chosen in passed:
        kept = levels.kept(event) if levels and is_chosen else event
        if after is None or place_of(event) > after:
            yield kept or event, is_chosen and kept is not None


def _led(there: Sequence[OutputSource], since_s: float) -> float:
    """The time from which on lines are read so that the level is known of what continues others since ``since_s``."""
    most = min(LEAD_BYTES, FIRST_LOOK_BYTES // max(1, len(there)))
    before_s = math.nextafter(since_s, -math.inf)
    return max((_until(source, before_s).back(most) for source in there), default=-math.inf)


def chunks_before(
    job: JobStore, choice: OutputChoice, before: Place | None
) -> Iterator[tuple[list[Event], Place | None]]:
    """Yield the chosen output backwards, in chunks that are in order each, with the place where the next one ends; None
    with the last one. Each chunk is read once; its size grows while little in it is chosen. Raises SpecError.

    Where levels are chosen, pieces hold only lines that have them.
    """
    there = sources(job, choice)
    size, until_s = _first_look(there), math.inf if before is None else before[0]
    while True:
        earlier = [_until(source, until_s) for source in there]
        since_s = max((source.back(size) for source in earlier), default=-math.inf)
        began_s = since_s if choice.levels is None else _led(earlier, since_s)
        passed = _passed([_from(source, began_s) for source in earlier], choice)
        chosen = (event for event, is_chosen in passed if is_chosen)
        levelled = chosen if choice.levels is None else PieceLevels(choice.levels).of(chosen)
        found = [
            event for event in levelled if event.time_s >= since_s and (before is None or place_of(event) < before)
        ]
        yield found, None if since_s == -math.inf else (since_s, "", 0)
        if since_s == -math.inf:
            return
        size, until_s = min(2 * size, MOST_CHUNK_BYTES), math.nextafter(since_s, -math.inf)


def place_of(event: Event) -> Place:
    """The place of a piece in the output of a job."""
    return event.time_s, event.writer, event.seq


def _passed(found: Iterable[OutputSource], choice: OutputChoice, after: Place | None = None) -> Iterator[Passed]:
    for event, has in heapq.merge(*(source.events() for source in found), key=lambda passed: place_of(passed[0])):
        if after is None or place_of(event) > after:
            yield event, is_notice(event) or (has and choice.takes(event))


def last_output(
    job: JobStore, choice: OutputChoice, make: Callable[[Iterator[Event]], Iterable[Shown]]
) -> Iterator[Shown]:
    """The last of what ``make`` makes of the chosen output, as many as the choice says; all where it says no number.

    Raises SpecError.
    """
    if choice.tail is None:
        yield from make(read_output(job, choice))
        return
    there = sources(job, choice)
    size = _first_look(there)
    while True:  # backwards: a little first, and more as long as that is too little
        since_s = max((source.back(size) for source in there), default=-math.inf)
        passed = _passed([_from(source, since_s) for source in there], choice)
        kept: deque[Shown] = deque(maxlen=2 * choice.tail)  # twice: the first lines may lack their beginning
        kept.extend(make(event for event, is_chosen in passed if is_chosen))
        if len(kept) == kept.maxlen or since_s == -math.inf:
            yield from list(kept)[-choice.tail :]
            return
        size *= 4


def _first_look(there: Sequence[OutputSource]) -> int:
    return min(TAIL_BYTES, max(FIRST_LOOK_BYTES // max(1, len(there)), PROBE_BYTES))


def _from(source: OutputSource, since_s: float) -> OutputSource:
    later = [(max(begin_s, since_s), end_s) for begin_s, end_s in source.windows if end_s >= since_s]
    return replace(source, windows=later)


def _until(source: OutputSource, until_s: float) -> OutputSource:
    earlier = [(begin_s, min(end_s, until_s)) for begin_s, end_s in source.windows if begin_s <= until_s]
    return replace(source, windows=earlier)


def _events(paths: Sequence[Path], since_s: float, until_s: float) -> Iterator[Event]:
    """The output in files of one node from a time to another, and one of `SKIPPED` other events."""
    seen: tuple[str, int] = ("", 0)
    skipped = 0
    for path in _from_time(paths, since_s):
        for line in _lines(path, position(path, since_s)):
            if _KIND not in line and (skipped := skipped + 1) < SKIPPED:
                continue
            try:
                event = decode_event(line)
            except ProtocolError:
                continue
            if event.time_s > until_s:
                return  # the files follow each other in time
            known = event.writer == seen[0] and event.seq <= seen[1]  # a joined segment and its parts are both there
            if (event.kind == OUTPUT or skipped >= SKIPPED) and event.time_s >= since_s and not known:
                seen, skipped = (event.writer, event.seq), 0
                yield event


def _from_time(paths: Sequence[Path], since_s: float) -> Sequence[Path]:
    """The files that may hold what was written since then: those of one row are sorted by time."""
    if since_s == -math.inf or not paths:
        return paths
    return paths[max(0, bisect_left(paths, since_s, key=_begin_s) - 1) :]


def _begin_s(path: Path) -> float:
    found = _line_at(path, 0, sys.maxsize)
    return math.inf if found is None else found[1]


def position(path: Path, time_s: float) -> int:
    """The offset of the first line in a file that is not before this time; its size where there is none."""
    try:
        low, high = 0, os.stat(path).st_size
    except OSError:
        return 0
    if time_s == -math.inf or time_s == math.inf:
        return 0 if time_s < 0 else high
    while low < high:  # the first line that begins at `low` or later is the answer, or comes before it
        middle = (low + high) // 2
        found = _line_at(path, middle, high)
        if found is not None and found[1] < time_s:
            low = found[0] + 1
        else:
            high = middle
    found = _line_at(path, low, sys.maxsize)
    return os.stat(path).st_size if found is None else found[0]


def _line_at(path: Path, offset: int, end: int) -> tuple[int, float] | None:
    """Where the first line that begins at ``offset`` or later, and before ``end``, begins, and its time.

    Lines that are no record are skipped. None where there is no such line.
    """
    with suppress(OSError), open(path, "rb", buffering=PROBE_BYTES) as file:
        if offset > 0:
            file.seek(offset - 1)
            _skip_line(file)
        while (at := file.tell()) < end and (head := file.readline(HEAD_BYTES)):
            if found := _TIME.match(head):
                return at, float(found[1])
            if not head.endswith(b"\n"):
                _skip_line(file)
    return None


def _skip_line(file: BinaryIO) -> None:
    while (content := file.readline(SLICE_BYTES)) and not content.endswith(b"\n"):
        pass


def _lines(path: Path, offset: int) -> Iterator[bytes]:
    """The whole lines of a file from there on. It is opened for each slice: there may be many nodes."""
    rest = b""
    while True:
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                content = file.read(SLICE_BYTES)
        except OSError:
            return  # dropped since it was listed
        if not content:
            return
        offset += len(content)
        *lines, rest = (rest + content).split(b"\n")
        yield from lines
        if len(rest) > LINE_LIMIT_BYTES:
            return
