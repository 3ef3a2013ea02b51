"""Append-only journals: a directory with JSONL files of each writer (`segments.py`), so that writers never contend.

A line is written with one `write(2)` to a file opened with O_APPEND. A killed writer may leave a torn last line (no
newline): a follower waits for its rest, and no other writer appends to it, because every writer has its own file. A
corrupt line in the middle is skipped and reported once, never raised. Times of one writer never go back, so merging
by time keeps each writer's order.
"""

from __future__ import annotations

import errno
import heapq
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..core.errors import ProtocolError, StoreError
from ..core.events import Command, Event, decode_command, decode_event, encode
from ..core.people import asked_by
from ..system import portable
from ..system.users import user_name
from . import segments
from .access import file_mode
from .member_files import MEMBERS, MemberFiles

Record = TypeVar("Record", Event, Command)
LINE_LIMIT_BYTES = 32 << 20
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)  # until others are closed
REST_S, LOOK_S = 5.0, 1.0  # a file of commands that rests is looked at less often; almost all hold one command
SAME_TIME_NS = 100_000_000  # two changes of a directory that are this near may have the same time
BROUGHT = ".brought"  # a job that was submitted on another machine, which has users of its own, and brings its commands


class RecordWriter(Generic[Record]):
    """Appends records to a file of its own in `directory`. Not thread-safe: one per thread."""

    def __init__(
        self,
        directory: Path,
        name: str,
        record: type[Record],
        clock: Callable[[], float] = time.time,
        segment_bytes: float = math.inf,
    ) -> None:
        """Begin another file after ``segment_bytes``."""
        self.name = f"{name}.{secrets.token_hex(4)}"
        self._record: type[Record] = record
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._seq = 0
        self.size = 0  # bytes written to the present file
        self.written = 0  # bytes written to all of them
        self._last_s = 0.0
        self._path = directory / segments.first_name(self.name)
        try:
            self._file = self._create()
        except OSError as error:
            raise StoreError(f"cannot create {self._path}: {error.strerror}") from error

    def _create(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | portable.NOT_INHERITED, 0o600)
        if (mode := file_mode(self._path.parent)) != 0o600:
            portable.set_mode(file, mode)  # whatever the umask
        return file

    def append(self, kind: str, data: Mapping[str, Any], *, durable: bool = False) -> Record:
        """Write one record and return it; `durable` waits for the disk.

        Raises StoreError when the disk refuses: the partial line is cut off again, so that the journal
        stays whole and a later append may succeed.
        """
        self._last_s = max(self._last_s, self._clock())
        record: Record = self._record(self.name, self._seq + 1, self._last_s, kind, data)
        line = encode(record)
        try:
            if self.size >= self._segment_bytes:
                self._begin_segment()
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
            if durable:
                os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise StoreError(f"cannot append to {self._path}: {error.strerror}") from error
        self._seq += 1
        self.size += len(line)
        self.written += len(line)
        return record

    @property
    def last_s(self) -> float:
        """The time of the record written last, 0 before the first."""
        return self._last_s

    @property
    def path(self) -> Path:
        """The present file."""
        return self._path

    def owner(self) -> int:
        """The user id that the file system gave the file, which a network file system may have mapped."""
        return os.fstat(self._file).st_uid

    def _begin_segment(self) -> None:
        before, before_path = self._file, self._path
        self._path = before_path.with_name(segments.later_name(self.name, self._seq + 1))
        try:
            self._file = self._create()
        except OSError:
            self._path = before_path
            raise
        self.size = 0
        os.close(before)

    def close(self) -> None:
        """Close the file; the journal stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RecordWriter[Record]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def event_writer(
    directory: Path, name: str, segment_bytes: float = math.inf, clock: Callable[[], float] = time.time
) -> RecordWriter[Event]:
    """Open a writer of events in `directory`; it begins another file after ``segment_bytes``."""
    return RecordWriter(directory, name, Event, clock, segment_bytes)


def command_writer(directory: Path, name: str) -> RecordWriter[Command]:
    """Open a writer of commands in `directory`."""
    return RecordWriter(directory, name, Command)


def files(directory: Path) -> list[Path]:
    """The files of a journal."""
    return [directory / name for name in segments.names(directory)]


_IDENTITY = re.compile(rb'\{"v":\d+,"writer":"([^"\\]+)","seq":(\d+),')


def identity(line: bytes) -> tuple[str, int] | None:
    """The writer and the number of a line's record. Reading them alone is many times faster than decoding the line."""
    found = _IDENTITY.match(line)
    return (found[1].decode(errors="replace"), int(found[2])) if found else None


def is_known(line: bytes, cursor: Mapping[str, int]) -> bool:
    """Whether a line's record was read before."""
    found = identity(line)
    return found is not None and found[1] <= cursor.get(found[0], 0)


@dataclass
class _Source:
    path: Path
    changed_s: float
    offset: int = 0
    tail: bytes = b""
    owner: int = -1


@dataclass
class JournalFollower(Generic[Record]):
    """Reads what is new in every file of a journal. `cursor` (writer -> last seq) resumes without a gap.

    Records of one writer come in order; those of one `poll` are merged by time, ties by writer.
    """

    directory: Path
    decode: Callable[[bytes], Record]
    cursor: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    # why a record is refused in a file of the user with this id, or ""
    refuse: Callable[[Record, int], str] | None = None
    also: Callable[[], list[Record]] = list  # records from elsewhere that are merged with these
    rest_s: float = math.inf  # a file that has not grown for so long is looked at only once per LOOK_S
    _sources: dict[str, _Source] = field(default_factory=dict)
    _listed: list[str] = field(default_factory=list)
    _due: list[str] = field(default_factory=list)  # files of which something may be unread
    _complete: frozenset[str] = frozenset()  # those of them that will not grow
    _look_s: float = 0.0  # when all files are looked at next
    _listed_ns: int = 0  # the directory's time when it was listed

    def poll(self) -> list[Record]:
        """Return the records that appeared since the last call; never raises for what a file contains."""
        found: list[Record] = []
        now_s = time.monotonic()
        if looks := now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
        if looks or self._is_touched():
            self._list()
        for name in self._due:
            if (source := self._sources.get(name)) is None:
                source = self._sources[name] = _Source(self.directory / name, now_s)
            if looks or name in self._complete or now_s - source.changed_s <= self.rest_s:
                found.extend(self._read(source, now_s))
        self._due = [name for name in self._due if name not in self._complete]
        self._forget_complete()
        found.extend(self.also())
        found.sort(key=lambda record: record.time_s)
        return found

    def wait(self, timeout_s: float, stop: Callable[[], bool] = lambda: False) -> list[Record]:
        """Poll until something appears, `stop()` is true or `timeout_s` has passed."""
        deadline, pause_s = time.monotonic() + timeout_s, 0.005
        while not (found := self.poll()) and not stop() and time.monotonic() < deadline:
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(pause_s * 1.5, 0.1)
        return found

    def read_so_far(self) -> dict[str, int]:
        """File -> how many bytes of it were read, of all files that may grow."""
        return {name: source.offset for name, source in self._sources.items()}

    def forget(self, there: Collection[str]) -> None:
        """Forget files that are gone: all but those in `there`."""
        for name in [name for name in self._sources if name not in there]:
            del self._sources[name]
            self.cursor.pop(name.removesuffix(segments.SUFFIX), None)

    def _is_touched(self) -> bool:
        """Whether there may be new files since the last call."""
        if self.rest_s == math.inf:
            return True
        try:
            at_ns = os.stat(self.directory).st_mtime_ns
        except OSError:
            return True
        before, self._listed_ns = self._listed_ns, at_ns if time.time_ns() - at_ns > SAME_TIME_NS else 0
        return at_ns != before

    def _list(self) -> None:
        try:
            listed = segments.names(self.directory)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            return  # what is new is found in a later turn
        if listed == self._listed:
            return
        self._listed = listed
        there = segments.in_order(listed)
        self._due = [segment.name for segment in segments.unread(there, self.cursor)]
        self._complete = frozenset(segments.last_records(there))
        self._forget_complete()
        for name in self._sources.keys() - set(listed):  # removed: of output, the oldest is dropped
            del self._sources[name]

    def _forget_complete(self) -> None:
        for name in self._complete.difference(self._due).intersection(self._sources):
            del self._sources[name]

    def _read(self, source: _Source, now_s: float) -> Iterator[Record]:
        try:
            size = os.stat(source.path).st_size
            if size <= source.offset:
                return
            with open(source.path, "rb") as file:
                source.owner = os.fstat(file.fileno()).st_uid
                file.seek(source.offset)
                content = file.read(size - source.offset)
        except OSError as error:
            if error.errno != errno.ENOENT:  # it may have been removed since it was listed
                self._report(f"{source.path.name}: {error.strerror}")
            return
        source.offset, source.changed_s = source.offset + len(content), now_s
        *lines, source.tail = (source.tail + content).split(b"\n")
        if len(source.tail) > LINE_LIMIT_BYTES:
            self._report(f"{source.path.name}: a line of more than {LINE_LIMIT_BYTES} bytes was left out")
            source.tail = b""
        for line in lines:
            if record := self._decode(source, line):
                yield record

    def _decode(self, source: _Source, line: bytes) -> Record | None:
        if is_known(line, self.cursor):
            return None
        try:
            record = self.decode(line)
        except ProtocolError as error:
            self._report(f"{source.path.name}: {error}")
            return None
        if record.seq <= self.cursor.get(record.writer, 0):
            return None
        self.cursor[record.writer] = record.seq
        if self.refuse is not None and (problem := self.refuse(record, source.owner)):
            self._report(f"{source.path.name}: {problem}")
            return None
        return record

    def _report(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < 100:
            self.problems.append(problem)


def follow_events(directory: Path, cursor: Mapping[str, int] | None = None) -> JournalFollower[Event]:
    """Follow a journal of events from `cursor` (from the beginning where None)."""
    return JournalFollower(directory, decode_event, dict(cursor or {}))


def follow_commands(directory: Path) -> JournalFollower[Command]:
    """Follow a journal of commands from the beginning.

    A command is refused, with a problem, where it names another person than the owner of its file, and where its file
    belongs to another user than the journal does, or root. Commands of members of a shared store's operating group are
    read from a directory of their own (`member_files.py`).
    """
    owner_of_job = os.stat(directory).st_uid
    brought = (directory.parent / BROUGHT).exists()
    owners = {owner_of_job, portable.user_id(), 0}

    def refuse(command: Command, owner: int) -> str:
        if owner not in owners:
            return f"a command of {user_name(owner)} was refused: the job belongs to {user_name(owner_of_job)}"
        by = asked_by(command.data)
        if by is not None and by.uid != owner and not brought:
            return f"a command in the name of {by} was refused: {user_name(owner)} wrote it"
        return ""

    follower = JournalFollower(directory, decode_command, refuse=refuse, rest_s=REST_S)
    members = MemberFiles(directory / MEMBERS, directory.parent.name, follower.problems.append)
    follower.also = members.poll
    return follower


def replay_events(directory: Path, cursor: Mapping[str, int], kinds: Collection[str] = ()) -> Iterator[Event]:
    """Yield what the journal holds after `cursor`, merged by time, with one line per writer in memory.

    ``kinds``: only events of these; lines that name none of them are not even parsed. Lines that do not decode are left
    out; close the generator to close its files.
    """
    seen = dict(cursor)
    words = [f'"{kind}"'.encode() for kind in kinds]
    there = segments.unread(segments.in_order(segments.names(directory)), cursor)
    sources = [
        _decoded([directory / segment.name for segment in of_writer], cursor, words)
        for _, of_writer in groupby(there, key=lambda segment: segment.writer)
    ]
    try:
        for event in heapq.merge(*sources, key=lambda event: event.time_s):
            if event.seq > seen.get(event.writer, 0):
                seen[event.writer] = event.seq
                if not kinds or event.kind in kinds:
                    yield event
    finally:
        for source in sources:
            source.close()


def unread_bytes(directory: Path, cursor: Mapping[str, int]) -> int:
    """About how many bytes a journal holds after ``cursor``: whole files count."""
    total = 0
    for segment in segments.unread(segments.in_order(segments.names(directory)), cursor):
        with suppress(OSError):
            total += os.stat(directory / segment.name).st_size
    return total


def _decoded(paths: list[Path], cursor: Mapping[str, int], words: list[bytes]) -> Generator[Event]:
    """The events of one writer after ``cursor``, of lines that have one of the ``words``, if there are any."""
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            while line := file.readline(LINE_LIMIT_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_LIMIT_BYTES:
                    break  # a torn tail, or one that is being written
                if is_known(line, cursor) or (words and not any(word in line for word in words)):
                    continue
                with suppress(ProtocolError):
                    yield decode_event(line)


def read_events(directory: Path) -> list[Event]:
    """Everything written so far, merged by time."""
    return follow_events(directory).poll()


def forget_oldest(directory: Path, keep: int, writer: str = "") -> None:
    """Delete all but the `keep` files written to last, of those whose names begin with `writer`: for a journal of which
    only the present matters."""
    with suppress(OSError):
        paths = sorted(directory.glob(f"{writer}*{segments.SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in paths[: max(0, len(paths) - keep)]:
            path.unlink(missing_ok=True)
