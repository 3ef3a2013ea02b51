"""Shards, merges and verifies stored models, and writes their manifests.

Everything streams: memory holds one chunk per connection, never a file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import LoaderError
from .. import manifest as sums
from ..read.http_connection import Cancel
from ..read.model_files import Files, closing_model, is_absent, open_model
from ..read.plan import CHUNK_BYTES, Chunk, plan
from ..read.progress import Callback, Meter
from ..read.source import Options, Source, read_start
from ..read.sources import Opener
from ..read.stream import Outcome, Stream
from ..read.verify import read_manifest
from .destination import Views
from .destinations import destination_of
from .layout import OutFile, Tensor
from .save import SHARD_BYTES
from .writer import Saved, Supply, Wanted, write_model

UrlOrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[begin, end)`` of a file that differ from the manifest, and the tensors there."""

    file: str
    begin: int
    end: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of verifying a model. `checked` is "checksums", or "structure" where there is no manifest."""

    url: str
    checked: str
    files: int
    tensors: int
    bytes: int
    damaged: tuple[Damage, ...]
    elapsed_s: float


def shard_model(
    url: UrlOrPath,
    target: UrlOrPath,
    shard_bytes: int = SHARD_BYTES,
    *,
    checksum: bool = False,
    progress: Callback | None = None,
    connections: int | None = None,
    options: Options | None = None,
) -> Saved:
    """Write the model `url` into the directory `target` in shards of at most `shard_bytes`; both may be the same.

    Raises LoaderError, SpecError and Conflict as `save_model` does.
    """
    return _rewrite(
        os.fspath(url), os.fspath(target), Wanted(shard_bytes, checksum, {}, connections, progress), options
    )


def merge_model(
    url: UrlOrPath,
    target: UrlOrPath,
    *,
    checksum: bool = False,
    progress: Callback | None = None,
    connections: int | None = None,
    options: Options | None = None,
) -> Saved:
    """Write the model `url` as one file: `target`, or ``model.safetensors`` in it. Raises as `shard_model`."""
    return _rewrite(url, target, Wanted(None, checksum, {}, connections, progress), options)


def write_manifest(
    url: UrlOrPath,
    target: UrlOrPath | None = None,
    *,
    progress: Callback | None = None,
    connections: int | None = None,
    options: Options | None = None,
) -> str:
    """Read a model and write the checksums of its chunks to `target`, by default beside it; return where.

    Raises LoaderError and SpecError.
    """
    url = os.fspath(url)
    where = os.fspath(target) if target else sums.manifest_url(url)
    with _opened(url, options) as (files, opener):
        destination, name = destination_of(where, opener, file=True)
        found = _checksums(files, opener, progress, connections)
        destination.put(name, found.encode())
    return where


def verify_model(
    url: UrlOrPath,
    manifest: UrlOrPath | None = None,
    *,
    progress: Callback | None = None,
    connections: int | None = None,
    options: Options | None = None,
) -> Verified:
    """Compare all of a model with its manifest, by default the one beside it, and return the differences.

    Without a manifest, headers, index and sizes are checked. Raises LoaderError where these are wrong.
    """
    began_s = time.monotonic()
    url, manifest = os.fspath(url), os.fspath(manifest) if manifest else None
    with _opened(url, options) as (files, opener):
        expected = _manifest_of(url, manifest, opener)
        damaged: tuple[Damage, ...] = ()
        if expected is not None:
            sums.check_files(expected, manifest or sums.manifest_url(url), files)
            found = _checksums(files, opener, progress, connections, expected.chunk_bytes)
            damaged = tuple(_differences(files, expected, found))
        checked = "structure" if expected is None else "checksums"
        tensors = sum(len(header.entries) for header in files.headers)
        size = sum(header.data_bytes for header in files.headers)
        return Verified(url, checked, len(files.names), tensors, size, damaged, time.monotonic() - began_s)


def _manifest_of(url: str, manifest: str | None, opener: Opener) -> sums.ModelManifest | None:
    try:
        return read_manifest(manifest or sums.manifest_url(url), opener)
    except LoaderError as error:
        if manifest is not None or not is_absent(error):
            raise
        return None


@contextmanager
def _opened(url: str, options: Options | None) -> Iterator[tuple[Files, Opener]]:
    with closing(Opener(options)) as opener, closing_model(open_model(url, opener)) as files:
        yield files, opener


def _rewrite(url: UrlOrPath, target: UrlOrPath, wanted: Wanted, options: Options | None) -> Saved:
    with _opened(os.fspath(url), options) as (files, opener):
        metadata: dict[str, str] = {}
        for header in files.headers:
            metadata |= header.metadata
        entries = [entry for header in files.headers for entry in header.entries]
        tensors = [Tensor(entry.name, entry.dtype, entry.shape) for entry in entries]
        return write_model(tensors, _Sources(files), os.fspath(target), replace(wanted, metadata=metadata), opener)


class _Sources(Supply):
    """Bytes of tensors as they lie in the files of another model; neighbours are read together."""

    def __init__(self, files: Files) -> None:
        self._places: Mapping[str, tuple[Source, int]] = {
            entry.name: (source, header.data_offset + entry.begin)
            for source, header in zip(files.sources, files.headers, strict=True)
            for entry in header.entries
        }

    def read(self, file: OutFile, begin: int, end: int, cancel: Cancel) -> Views:
        view = memoryview(np.empty(end - begin, np.uint8).data)
        for source, offset, place, length in self._runs(file, begin, end):
            source.read_into(offset, view[place : place + length], cancel)
        return [view]

    def _runs(self, file: OutFile, begin: int, end: int) -> Iterator[tuple[Source, int, int, int]]:
        """Yield source, offset in it, place in the result, length."""
        run: tuple[Source, int, int, int] | None = None
        for entry in file.header.entries_in(begin, end):
            first, last = max(begin, entry.begin), min(end, entry.end)
            source, offset = self._places[entry.name]
            offset += first - entry.begin
            if run is not None and run[0] is source and run[1] + run[3] == offset:
                run = (*run[:3], run[3] + last - first)
                continue
            if run is not None:
                yield run
            run = (source, offset, first - begin, last - first)
        if run is not None:
            yield run


def _checksums(
    files: Files, opener: Opener, progress: Callback | None, connections: int | None, chunk_bytes: int = CHUNK_BYTES
) -> sums.ModelManifest:
    """Read everything once and return the contents of its manifest."""
    load_plan = plan(files.headers, chunk_bytes=chunk_bytes)
    found = [[""] * -(-header.data_bytes // chunk_bytes) for header in files.headers]
    local = threading.local()

    def fetch(chunk: Chunk, cancel: Cancel) -> Outcome:
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(np.empty(chunk_bytes, np.uint8).data)
        view = local.buffer[: chunk.length]
        files.sources[chunk.file].read_into(chunk.offset, view, cancel)
        found[chunk.file][chunk.place // chunk_bytes] = sums.digest(view)
        return "read"

    Stream(load_plan.chunks, fetch, Meter(load_plan, time.monotonic()), opener.counters, connections, progress).run()
    return sums.ModelManifest(
        chunk_bytes,
        {
            name: sums.FileSums(source.size, sums.digest(read_start(source, header.data_offset)), tuple(chunks))
            for name, source, header, chunks in zip(files.names, files.sources, files.headers, found, strict=True)
        },
    )


def _differences(files: Files, expected: sums.ModelManifest, found: sums.ModelManifest) -> Iterator[Damage]:
    for name, header in zip(files.names, files.headers, strict=True):
        was, now = expected.files[name], found.files[name]
        if was.header != now.header:
            yield Damage(name, 0, header.data_offset, ())
        for number, (one, other) in enumerate(zip(was.chunks, now.chunks, strict=True)):
            if one != other:
                begin = number * found.chunk_bytes
                end = min(begin + found.chunk_bytes, header.data_bytes)
                hit = tuple(entry.name for entry in header.entries_in(begin, end))
                yield Damage(name, header.data_offset + begin, header.data_offset + end, hit)
