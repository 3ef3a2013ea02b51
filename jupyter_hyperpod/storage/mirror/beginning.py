"""Everything with which a job begins, in frames for a store that does not have it yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..source_record import FOLDER as SOURCES
from ..store import JobStore, Store
from ..values import pushed_in
from .mirror_frames import CONTENT_BYTES, Frame

SPEC, INCLUDE = "spec.json", "include"
FIRST = ("secret", "environment", "fingerprint.json")


def first_frames(store: Store, job: JobStore, spec: bytes, there: Mapping[str, int]) -> Iterator[Frame]:
    """The job's files, with ``spec`` as its specification. Raises NotFound, StoreError, OSError.

    ``there``: path -> how much the other side has of what is brought in pieces. A connection that is cut again and
    again brings more each time.
    """
    digest = job.spec().cell_digest
    cell = store.cell(digest)
    for one in (digest, *pushed_in(cell)):
        yield Frame({"path": f"cells/{one}", "whole": 1}, store.cell(one).encode())
    yield Frame({"path": SPEC, "whole": 1}, spec)
    for name in FIRST:
        with suppress(FileNotFoundError):
            yield Frame({"path": name, "whole": 1}, (job.path / name).read_bytes())
    for path in sorted((job.path / SOURCES).glob("*")):  # what the job's first member imported, or other trials did
        yield Frame({"path": f"{SOURCES}/{path.name}", "whole": 1}, path.read_bytes())
    for path in sorted((job.path / INCLUDE).rglob("*")):
        if path.is_file():
            yield from _pieces(path, path.relative_to(job.path).as_posix(), there)


def _pieces(path: Path, name: str, there: Mapping[str, int]) -> Iterator[Frame]:
    at = there.get(name, -1)
    with open(path, "rb") as file:
        file.seek(max(at, 0))
        while (piece := file.read(CONTENT_BYTES)) or at < 0:  # an empty file is one, too
            yield Frame({"path": name, "at": max(at, 0)}, piece)
            at = max(at, 0) + len(piece)


def batches(frames: Iterator[Frame], limit: int = CONTENT_BYTES) -> Iterator[list[Frame]]:
    """Frames in portions of about so many bytes, which one command takes."""
    batch: list[Frame] = []
    size = 0
    for frame in frames:
        batch.append(frame)
        size += len(frame.content)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
