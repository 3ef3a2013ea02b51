"""Finds and opens the files of a model: one file, an index with its shards, or a directory with either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...core.errors import HyperpodError, LoaderError
from ...core.names import public_name
from ..header import INDEX_SUFFIX, PREFIX_BYTES, SINGLE, Header, header_end, parse_header, parse_index
from ..urls import beside, inside, path_in
from .http_connection import Cancel
from .plan import Chunk
from .source import Source, read_start
from .sources import Opener

MAX_INDEX_BYTES = 100_000_000
OPENED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Files:
    """The opened files of a model and their headers, in one order."""

    names: tuple[str, ...]
    sources: tuple[Source, ...]
    headers: tuple[Header, ...]

    def read(self, chunk: Chunk, view: memoryview, cancel: Cancel) -> None:
        """Read a chunk's pieces, end to end. Raises LoaderError and Cancelled."""
        source = self.sources[chunk.file]
        if chunk.rows > 1:
            source.read_rows(chunk.offset, chunk.length, chunk.rows, chunk.stride, view, cancel)
        else:
            source.read_into(chunk.offset, view, cancel)

    def close(self) -> None:
        """Close all; raises LoaderError for an object that has changed since it was opened."""
        error: LoaderError | None = None
        for source in self.sources:
            try:
                source.close()
            except LoaderError as changed:
                error = error or changed
        if error is not None:
            raise error


def open_model(url: str, opener: Opener) -> Files:
    """Open a ``.safetensors`` file, an ``.index.json``, or a directory. Raises LoaderError."""
    path = path_in(url)
    if path.endswith(".json"):
        return _open_index(url, opener)
    if path.endswith(".safetensors"):
        return _open_files([url], opener)
    try:
        return _open_index(inside(url, SINGLE + INDEX_SUFFIX), opener)
    except LoaderError as no_index:
        if not is_absent(no_index):
            raise
    try:
        return _open_files([inside(url, SINGLE)], opener)
    except LoaderError as error:
        if not is_absent(error):
            raise
        expected = f"{SINGLE} or {SINGLE}{INDEX_SUFFIX} in it"
        raise LoaderError(public_name(url), f"neither ({error.found})", expected, "or name the file itself") from None


@contextmanager
def closing_model(files: Files) -> Iterator[Files]:
    """Close the files at the end of a block. Raises LoaderError if one has changed, unless the block failed already."""
    try:
        yield files
    except BaseException:
        with suppress(HyperpodError):
            files.close()
        raise
    files.close()


def read_header(source: Source) -> Header:
    """Return the header of an opened file. Raises LoaderError."""
    end = header_end(source.prefix[:PREFIX_BYTES], source.size, source.name)
    return parse_header(read_start(source, end), source.size, source.name)


def is_absent(error: LoaderError) -> bool:
    """True if the object does not exist, or is invisible to this account.

    Without permission to list a bucket, S3 refuses access to a missing object instead of reporting it as missing.
    """
    return is_refused(error) or error.found.startswith(("nothing", "No such file"))


def is_refused(error: LoaderError) -> bool:
    """True if access was refused, so that the object may or may not exist."""
    return error.found.startswith("no permission")


def _open_index(url: str, opener: Opener) -> Files:
    source, content = opener.read(url, MAX_INDEX_BYTES)
    weights = parse_index(content, source)
    names = sorted(set(weights.values()))
    files = _open_files([beside(url, name) for name in names], opener)
    try:
        _check_index(source, weights, names, files.headers)
    except LoaderError:
        with suppress(LoaderError):
            files.close()
        raise
    return files


def _check_index(source: str, weights: dict[str, str], names: Sequence[str], headers: Sequence[Header]) -> None:
    held = {entry.name: name for name, header in zip(names, headers, strict=True) for entry in header.entries}
    for tensor, name in weights.items():
        if held.get(tensor) != name:
            where = held.get(tensor, "no file")
            raise LoaderError(source, f"tensor {tensor!r} in {where}", f"it in {name}, as the index says")
    if extra := held.keys() - weights.keys():
        raise LoaderError(source, f"tensor {min(extra)!r} in {held[min(extra)]}", "only tensors that the index names")


def _open_files(urls: Sequence[str], opener: Opener) -> Files:
    opened: list[Source] = []

    def enter(url: str) -> tuple[Source, Header]:
        source = opener.open(url)
        opened.append(source)
        return source, read_header(source)

    try:
        if len(urls) == 1:
            found = [enter(urls[0])]
        else:
            with ThreadPoolExecutor(min(OPENED_AT_ONCE, len(urls))) as threads:
                found = list(threads.map(enter, urls))
    except BaseException:
        for source in opened:
            with suppress(HyperpodError):
                source.close()
        raise
    names = tuple(path_in(url).rpartition("/")[2] for url in urls)
    return Files(names, tuple(source for source, _ in found), tuple(header for _, header in found))
