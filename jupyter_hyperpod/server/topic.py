"""One followed journal in the server: its fold, its newest events, and readers with their positions.

The journal itself is the buffer: a reader behind the newest events reads from the disk, from its cursor. So a slow
reader loses nothing and takes no memory.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.events import SAMPLE_KINDS, Event, to_json
from ..core.views import UNFOLDABLE, View, apply
from ..storage.journal import follow_events, replay_events

MESSAGE_BYTES = 256 * 1024
MESSAGE_EVENTS = 1000
REPLAYED_EVENTS = 20_000
PROBLEMS_KEPT = 200
BATCHES_KEPT = 4
# lists of which the fold never changes a record; those of a job of 10,000 members take long to copy
UNCHANGING = frozenset({"members", "spares", "generations"})
NAMES_KEPT = 1024  # sets of names that samples share
ENTRY_BYTES = 144  # of memory that an event takes beside its text, where writers and names are shared


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event, encoded once for all readers. `names` are those of a sample, None for a fact."""

    writer: str
    seq: int
    names: frozenset[str] | None
    text: str

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return sys.getsizeof(self.text) + ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Batch:
    """A message with the events after a position, for all readers that stand there. ``seen``: writer to last seq."""

    text: str
    position: int
    seen: Mapping[str, int]


def encode_entry(event: Event) -> EncodedEvent:
    """Encode an event for the wire."""
    names = _shared_names(tuple(event.data["values"])) if event.kind in SAMPLE_KINDS else None
    record = to_json(event)
    record["data"].pop("shown", None)  # a browser gets displays from its kernel
    return EncodedEvent(sys.intern(event.writer), event.seq, names, dumps(record))


@lru_cache(NAMES_KEPT)
def _shared_names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


def dumps(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Topic:
    """A followed journal. `poll` belongs to one thread at a time; everything else may be called from any."""

    def __init__(self, name: str, directory: Path, view: View, recent_bytes: int, problems: Iterable[str] = ()) -> None:
        """Follow the journal from where ``view`` ends."""
        self.name = name
        self.directory = directory
        self.revision = 0
        self._view = view
        self._overlay: View = {}
        self._recent: deque[EncodedEvent] = deque()
        self._recent_bytes = 0
        self._limit_bytes = recent_bytes
        self._before_recent: dict[str, int] = dict(view["seen"])
        self._end = 0
        self._problems: list[str] = list(problems)
        self._follower_problems = 0
        self._follower = follow_events(directory, view["seen"])
        self._batches: dict[int, Batch] = {}
        self._lock = threading.Lock()

    @property
    def end(self) -> int:
        """The number of folded events."""
        return self._end

    @property
    def problem_count(self) -> int:
        """The number of lines or events that could not be read (bounded)."""
        return len(self._problems)

    def poll(self, keep: bool = True) -> list[Event]:
        """Fold new events of the journal and return them. ``keep``: have the newest in memory for readers."""
        events = self._follower.poll()
        told, self._follower_problems = self._follower_problems, len(self._follower.problems)
        if events or told != self._follower_problems or (self._recent and not keep):
            entries = self._encode(events) if keep else []
            with self._lock:
                self._problems += self._follower.problems[told:]
                self._fold(events)
                if len(entries) < len(events) or not keep:
                    self._begin_recent(entries)
                self._remember(len(events), entries)
        return events

    def _encode(self, events: list[Event]) -> list[EncodedEvent]:
        """Encode the newest of `events`, as many as are kept in memory."""
        entries: list[EncodedEvent] = []
        room = self._limit_bytes
        for event in reversed(events):
            entry = encode_entry(event)
            room -= entry.size
            if room < 0:
                break
            entries.append(entry)
        return entries[::-1]

    def _fold(self, events: Iterable[Event]) -> None:
        for event in events:
            try:
                apply(self._view, event)
            except UNFOLDABLE as error:
                if len(self._problems) < PROBLEMS_KEPT:
                    line = f"{event.kind} number {event.seq} of {event.writer} cannot be shown: {error!r}"
                    self._problems.append(line)

    def _begin_recent(self, entries: list[EncodedEvent]) -> None:
        """Forget all events in memory: these are the newest."""
        self._recent.clear()
        self._recent_bytes = 0
        self._before_recent = dict(self._view["seen"])
        for entry in reversed(entries):
            self._before_recent[entry.writer] = entry.seq - 1

    def _remember(self, count: int, entries: list[EncodedEvent]) -> None:
        self._batches.clear()
        self._recent.extend(entries)
        self._recent_bytes += sum(entry.size for entry in entries)
        self._end += count
        while self._recent_bytes > self._limit_bytes:
            oldest = self._recent.popleft()
            self._recent_bytes -= oldest.size
            self._before_recent[oldest.writer] = oldest.seq

    def get(self, *names: str) -> tuple[Any, ...]:
        """Some fields of the view at one moment."""
        with self._lock:
            return tuple(self._view[name] for name in names)

    def copy_fields(self, names: Iterable[str]) -> View:
        """Some fields of the view, copied by way of JSON where records of them may still change."""
        with self._lock:
            chosen = {name: self._view[name] for name in names}
            lists = {name: list(value) for name, value in chosen.items() if name in UNCHANGING}
            text = dumps({name: value for name, value in chosen.items() if name not in lists})
        fields: View = json.loads(text)
        return fields | lists

    def overlay(self, fields: Mapping[str, Any]) -> bool:
        """Show `fields` instead of the folded ones. A change makes a new `revision`; returns whether there was one."""
        with self._lock:
            if dict(fields) == self._overlay:
                return False
            self._overlay = dict(fields)
            self.revision += 1
            return True

    def snapshot(self) -> tuple[str, dict[str, int], int, int]:
        """The message that carries the view, its cursor, its end and its revision."""
        with self._lock:
            view = self._view | self._overlay
            if self._problems and "warnings" in view:
                lines = [{"time_s": view["updated_s"], "text": f"journal: {text}"} for text in self._problems]
                view["warnings"] = view["warnings"] + lines
            text = dumps({"type": "snapshot", "topic": self.name, "view": view})
            return text, dict(view["seen"]), self._end, self.revision

    def position_after(self, cursor: Mapping[str, int]) -> int | None:
        """The position in the newest events at which a reader with `cursor` continues; None where it is behind."""
        with self._lock:
            if any(cursor.get(writer, 0) < seq for writer, seq in self._before_recent.items()):
                return None
            return self._end - len(self._recent)

    def events_after(self, cursor: Mapping[str, int]) -> int:
        """About how many events a reader with `cursor` has not seen."""
        with self._lock:
            return sum(max(0, seq - cursor.get(writer, 0)) for writer, seq in self._view["seen"].items())

    def after(self, position: int) -> list[EncodedEvent] | None:
        """The newest events from `position` on, at most one message; None where memory no longer has them."""
        with self._lock:
            skip = position - (self._end - len(self._recent))
            if skip < 0:
                return None
            return list(up_to_a_message(islice(self._recent, skip, None)))

    def ready(self, position: int) -> Batch | None:
        """The next message for readers at ``position``, made once for all; None where it takes waiting or the disk."""
        if not self._lock.acquire(blocking=False):  # the tailer may fold many events just now
            return None
        try:
            if position not in self._batches:
                skip = position - (self._end - len(self._recent))
                if skip < 0:
                    return None
                found = list(up_to_a_message(islice(self._recent, skip, None)))
                seen = {entry.writer: entry.seq for entry in found}
                while len(self._batches) >= BATCHES_KEPT:
                    del self._batches[next(iter(self._batches))]
                text = events_message(self.name, without_old_samples(found))
                self._batches[position] = Batch(text, position + len(found), seen)
            return self._batches[position]
        finally:
            self._lock.release()

    def problems(self, told: int) -> list[str]:
        """The problems after the first `told`."""
        with self._lock:
            return self._problems[told:]


class TopicReader:
    """The position of one socket in one topic. `take` and `close` are thread-safe."""

    def __init__(self, topic: Topic, cursor: Mapping[str, int] | None) -> None:
        self.topic = topic
        self._cursor: dict[str, int] = dict(cursor or {})
        self._position = None if cursor is None else topic.position_after(cursor)
        # a view is shorter than so many events, and old samples may have been thinned
        self._fresh = cursor is None or topic.events_after(cursor) > REPLAYED_EVENTS
        self._exact = False  # whether the cursor is just that of the position, so that no event has to be left out
        self._revision = 0
        self._told = topic.problem_count
        # the last reference closes generators, and with them their files
        self._replay: Iterator[EncodedEvent] | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pending(self) -> bool:
        """Whether `take` may have messages."""
        topic = self.topic
        behind = self._position != topic.end or self._revision != topic.revision or self._told != topic.problem_count
        return not self._closed and (self._fresh or behind or self._replay is not None)

    def take(self) -> list[str]:
        """The next messages for the socket: one snapshot or one batch of events, and problems. Empty: up to date."""
        with self._lock:
            if self._closed:
                return []
            if self._fresh or self._revision != self.topic.revision:
                return [self._snapshot()]
            messages = [
                dumps({"type": "problem", "text": f"{self.topic.name}: journal: {text}"})
                for text in self.topic.problems(self._told)
            ]
            self._told += len(messages)
            if batch := without_old_samples(self._batch()):
                messages.append(events_message(self.topic.name, batch))
            return messages

    def take_ready(self) -> list[str] | None:
        """The next messages where they are in memory, shared with other readers; None where `take` has to make them."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            topic, position = self.topic, self._position
            same = self._revision == topic.revision and self._told == topic.problem_count
            if self._closed or self._fresh or not self._exact or not same or position is None or self._replay:
                return None
            batch = topic.ready(position)
            if batch is None:
                return None
            self._position = batch.position
            self._cursor.update(batch.seen)
            return [batch.text] if batch.seen else []
        finally:
            self._lock.release()

    def _snapshot(self) -> str:
        self._replay = None
        text, self._cursor, self._position, self._revision = self.topic.snapshot()
        self._told = self.topic.problem_count
        self._fresh, self._exact = False, True
        return text

    def _batch(self) -> list[EncodedEvent]:
        """The next events: from the disk where the reader is behind, else from memory."""
        if self._replay is None:
            found = None if self._position is None else self.topic.after(self._position)
            if self._position is not None and found is not None:
                self._position += len(found)
                unseen = list(self._unseen(found))
                self._exact = len(unseen) == len(found)
                return unseen
            self._position, self._exact = self.topic.end, False
            self._replay = map(encode_entry, replay_events(self.topic.directory, self._cursor))
        batch = list(up_to_a_message(self._unseen(self._replay)))
        if not batch:
            self._replay = None
        return batch

    def _unseen(self, entries: Iterable[EncodedEvent]) -> Iterator[EncodedEvent]:
        for entry in entries:
            if entry.seq > self._cursor.get(entry.writer, 0):
                self._cursor[entry.writer] = entry.seq
                yield entry

    def close(self) -> None:
        """Release the files; `take` returns nothing from now on."""
        with self._lock:
            self._closed = True
            self._replay = None


def events_message(topic: str, batch: Iterable[EncodedEvent]) -> str:
    """The message that carries events of a topic."""
    events = ",".join(entry.text for entry in batch)
    return f'{{"type":"events","topic":{dumps(topic)},"events":[{events}]}}'


def up_to_a_message(entries: Iterable[EncodedEvent]) -> Iterator[EncodedEvent]:
    """The first of `entries`, up to `MESSAGE_BYTES` or `MESSAGE_EVENTS`."""
    size = 0
    for count, entry in enumerate(entries, 1):
        yield entry
        size += len(entry.text)
        if size >= MESSAGE_BYTES or count >= MESSAGE_EVENTS:
            return


def without_old_samples(batch: list[EncodedEvent]) -> list[EncodedEvent]:
    """Leave out each sample whose names the same writer all repeats later in the batch."""
    if all(entry.names is None for entry in batch):
        return batch
    told: dict[str, frozenset[str]] = {}
    kept: list[EncodedEvent] = []
    for entry in reversed(batch):
        if entry.names is not None:
            later = told.get(entry.writer, frozenset())
            if entry.names <= later:
                continue
            told[entry.writer] = later | entry.names
        kept.append(entry)
    return kept[::-1]
