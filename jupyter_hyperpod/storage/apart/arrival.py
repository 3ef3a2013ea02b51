"""Takes a job into a pod's own store. The head runs it in the pod, with frames in standard input.

    python -m jupyter_hyperpod.storage.apart.arrival --store DIR --job ID --size N

It prints, as JSON, whether the pod has the job, and how long the files are that the job includes: a later run brings
the rest. What a pod has already is not written anew, except for where its head is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.errors import HyperpodError, ProtocolError
from ...core.names import validate_job_id
from ..mirror.beginning import INCLUDE
from ..mirror.mirror_frames import Frame, FrameReader
from ..mirror.target import BEGINS, MirrorTarget
from ..store import ENDPOINT_FILE, Store, private_directory, write_private
from .wire import ADDRESS_FILE

HEAD = (ADDRESS_FILE, ENDPOINT_FILE)
_OUTPUT = r"output/[A-Za-z0-9_][A-Za-z0-9._+~@-]{0,200}\.(?:dropped|steps)"
FROM_HEAD = re.compile(rf"{BEGINS}|{_OUTPUT}|{'|'.join(map(re.escape, HEAD))}")
CELL = re.compile(r"cells/[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Arrived:
    """``here``: the pod has the job. ``sizes``: of files that may still grow."""

    here: bool
    sizes: Mapping[str, int]

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: bytes) -> Arrived:
        """Raises ProtocolError."""
        try:
            found = json.loads(text)
            return cls(bool(found["here"]), {str(path): int(size) for path, size in found["sizes"].items()})
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ProtocolError(f"a pod answered {text[:200]!r}; expected what it has of the job") from None


def arrive(store: Store, job_id: str, data: bytes) -> Arrived:
    """Take frames. Raises ProtocolError, StoreError."""
    job, building = store.jobs / job_id, store.jobs / f".new-{job_id}"
    for frame in FrameReader().feed(data):
        if "commit" in frame.head:
            if building.is_dir() and not job.is_dir():
                os.rename(building, job)
        elif is_cell(frame) or not job.is_dir() or frame.head.get("path") in HEAD:
            put(store, job_id, frame, FROM_HEAD, ("events", "commands", "logs"))
    found = (path for path in (building / INCLUDE).rglob("*") if path.is_file())
    return Arrived(job.is_dir(), {path.relative_to(building).as_posix(): path.stat().st_size for path in found})


def is_cell(frame: Frame) -> bool:
    """Whether a frame brings the source of a cell, which is beside the jobs."""
    return CELL.fullmatch(str(frame.head.get("path"))) is not None


def put(store: Store, job_id: str, frame: Frame, allowed: re.Pattern[str], folders: Sequence[str]) -> None:
    """Write what a frame brings of a job, which has these ``folders``: where the job is, or where it is being built.

    Raises ProtocolError for what is not ``allowed``, StoreError.
    """
    if is_cell(frame):
        write_private(store.prepare().root / str(frame.head["path"]), frame.content)
        return
    place = store.jobs / job_id
    if not place.is_dir():
        place = store.jobs / f".new-{job_id}"
    for folder in (place, *(place / name for name in folders)):
        private_directory(folder)
    MirrorTarget(place, allowed).take(frame)


def read_all(size: int) -> bytes:
    """``size`` bytes of standard input. Raises ProtocolError where fewer come."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(sys.stdin.fileno(), size - len(data))
        if not piece:
            raise ProtocolError(f"{len(data)} of {size} bytes arrived")
        data += piece
    return bytes(data)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.storage.apart.arrival")
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--job", required=True, type=validate_job_id)
    parser.add_argument("--size", required=True, type=int, help="how many bytes standard input brings")
    options = parser.parse_args(arguments)
    try:
        print(arrive(Store(options.store), options.job, read_all(options.size)).encode(), flush=True)
    except HyperpodError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
