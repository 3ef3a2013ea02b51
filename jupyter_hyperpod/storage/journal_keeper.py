"""Keeps the journal of a long job small: folds it into a snapshot and joins old segments; started now and then.

    python -m jupyter_hyperpod.storage.journal_keeper --job DIR

Facts are never removed. Samples are thinned with age, to at least `POINTS_BETWEEN` for each point of a plot. What the
nodes have used, a journal of its own, is thinned, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from itertools import groupby, takewhile
from pathlib import Path

from ..core.errors import Conflict, HyperpodError, StoreError
from ..core.views import View
from ..system.locks import one_at_a_time
from . import segments
from .folded import FoldedJournal
from .resources.node_uses import FOLDER
from .resources.thinned_samples import thinned as thinned_uses
from .segments import JournalSegment
from .store import JobStore, write_readable
from .thinning import thinned

LOCK = "keeper.lock"
JOINED = 8  # segments become one, with a stride that is larger by the same factor
NEWEST_KEPT = 8  # of each stride are not joined: a reader that is a little behind misses nothing
POINTS_BETWEEN = 8
WORTH_BYTES = 1 << 19
NICENESS = 10


class Growth:
    """Notices when a journal has grown enough to be kept again. Reads sizes only."""

    def __init__(self, job: JobStore) -> None:
        self._job = job
        self._kept = self._size()

    def enough(self) -> bool:
        """Whether it has grown by `WORTH_BYTES` since the last time that it had."""
        size = self._size()
        if 0 <= size - self._kept < WORTH_BYTES:
            return False
        self._kept = size
        return True

    def _size(self) -> int:
        try:
            samples = self._job.path / FOLDER
            folders = (self._job.events, samples) if samples.is_dir() else (self._job.events,)
            return sum(entry.stat().st_size for folder in folders for entry in os.scandir(folder))
        except OSError:
            return 0


def keep(job: JobStore) -> View:
    """Write the snapshot of a job's view, and join segments. Raises StoreError, or Conflict while another process does
    the same."""
    with one_at_a_time(job.path / LOCK, f"the journal of {job.id} is being kept", 0.0, where_possible=True):
        folded = FoldedJournal(job)
        folded.catch_up()
        if folded.folded:
            folded.save()
        join(job.events, folded.view)
        join_samples(job.path / FOLDER)
        return folded.view


def join(directory: Path, view: View) -> None:
    """Join the oldest segments of each writer, as far as the view already holds them and its history allows."""
    _join(directory, lambda writer: view["seen"].get(writer, 0), view["history_stride"] // POINTS_BETWEEN, thinned)


def join_samples(directory: Path) -> None:
    """Join the oldest segments of what the nodes have used, which is in no view."""
    _join(directory, lambda _: sys.maxsize, sys.maxsize, thinned_uses)


def _join(
    directory: Path, held: Callable[[str], int], widest: int, thin: Callable[[list[bytes], int], Iterable[bytes]]
) -> None:
    """``held``: the last record of a writer that a view holds. ``widest``: the largest stride."""
    _remove_joined(directory)
    while joinable := _joinable(segments.in_order(segments.names(directory)), held, widest):
        several, stride = joinable
        last = segments.last_records(segments.in_order(segments.names(directory)))[several[-1].name]
        lines = [line for segment in several for line in _lines(directory / segment.name)]
        name = segments.joined_name(several[0].writer, several[0].first, last, stride)
        write_readable(directory / name, b"".join(thin(lines, stride)))
        for segment in several:
            (directory / segment.name).unlink(missing_ok=True)


def _remove_joined(directory: Path) -> None:
    """Remove segments that were joined by a process which ended before it had removed them."""
    there = segments.in_order(segments.names(directory))
    ends = segments.last_records(there)
    for whole in there:
        for part in there if whole.last is not None else ():
            inside = part.writer == whole.writer and part.first >= whole.first and part.stride < whole.stride
            if inside and ends.get(part.name, sys.maxsize) <= ends[whole.name]:
                (directory / part.name).unlink(missing_ok=True)


def _joinable(
    there: list[JournalSegment], held: Callable[[str], int], widest: int
) -> tuple[list[JournalSegment], int] | None:
    """The next segments to be joined, and their stride then."""
    ends = segments.last_records(there)
    for writer, of_writer in groupby(there, key=lambda segment: segment.writer):
        if writer.startswith(segments.OUTPUT_WRITER):
            continue  # the oldest is dropped file by file (`output/output_cap.py`)
        folded = takewhile(lambda s: s.name in ends and ends[s.name] <= held(s.writer), list(of_writer))
        for before, alike in groupby(folded, key=lambda segment: segment.stride):
            several, stride = list(alike), before * JOINED
            if stride <= widest and len(several) >= JOINED + NEWEST_KEPT:
                return several[:JOINED], stride
    return None


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def main() -> int:
    """Keep one journal; a failure is said, and the next time may succeed."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.storage.journal_keeper", description=__doc__)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.nice(NICENESS)
    try:
        keep(JobStore(options.job))
    except Conflict:
        return 0
    except HyperpodError as error:
        print(f"the journal is not kept: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
