"""Writes all files of a model in parallel parts, then switches readers to the new model in one step.

A new model is invisible until complete. Where it replaces another one, readers see the old model until the last step,
the switch: the index is written or removed, or the single file takes its place. Files published before have unused
names, so they can be removed where the switch fails. From the switch on, nothing of the new model is removed, and the
files of the old one are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...core.errors import HyperpodError, LoaderError, SpecError
from .. import manifest as sums
from ..header import INDEX_SUFFIX, SINGLE, parse_index
from ..read.http_connection import Cancel
from ..read.model_files import MAX_INDEX_BYTES, is_absent, is_refused
from ..read.plan import CHUNK_BYTES, Chunk, plan
from ..read.progress import Callback, Meter
from ..read.sources import Opener
from ..read.stream import Outcome, Stream
from .destination import Destination, MaybeDone, NotDurable, Upload, Views
from .destinations import destination_of
from .layout import OutFile, Tensor, encode_index, lay_out, part_bytes

AT_ONCE = 16  # requests without content


class Supply(Protocol):
    """The source of the tensors' bytes; called by many threads."""

    def read(self, file: OutFile, begin: int, end: int, cancel: Cancel) -> Views:
        """Return bytes ``[begin, end)`` of a file's data. Raises LoaderError and Cancelled."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of a write: the files of the model, the bytes of its tensors, and the time it took."""

    url: str
    files: tuple[str, ...]
    tensors: int
    bytes: int
    elapsed_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True)
class Wanted:
    """How a model is to be written; see `save_model`."""

    shard_bytes: int | None = None
    checksum: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    connections: int | None = None
    progress: Callback | None = None


def write_model(tensors: Sequence[Tensor], supply: Supply, url: str, wanted: Wanted, opener: Opener) -> Saved:
    """Write a model to the file or the directory `url`.

    Raises LoaderError; then either nothing has changed there, or the complete new model is there.
    """
    began_s = time.monotonic()
    if url.endswith(".json"):
        raise SpecError(f"{url} is an index: name its directory")
    destination, name = destination_of(url, opener)
    if name and wanted.shard_bytes is not None:
        raise SpecError(f"{url} is one file: name a directory to write shards, or leave shard_bytes out")
    manifest = sums.manifest_url(name or SINGLE)
    if destination.comes_back(manifest) and _is_there(destination.url(manifest), opener):
        wanted = replace(wanted, checksum=True)  # the old manifest could not be removed
    old = _Old(False) if name else _old_model(destination, opener)
    files = lay_out(tensors, wanted.metadata, wanted.shard_bytes, name or SINGLE)
    if not name and not _is_free(destination, files, old):
        files = lay_out(tensors, wanted.metadata, wanted.shard_bytes, SINGLE, f"-{secrets.token_hex(4)}")
    _Writer(destination, files, supply, wanted, opener, began_s, old, name or SINGLE).write()
    size = sum(file.header.data_bytes for file in files)
    names = tuple(file.name for file in files)
    return Saved(url, names, len(tensors), size, time.monotonic() - began_s)


@dataclass(frozen=True, slots=True)
class _Old:
    """The content of a directory: whether it has an index (None: permissions hide that), and its shards."""

    index: bool | None
    shards: frozenset[str] = frozenset()


def _is_there(url: str, opener: Opener) -> bool:
    try:
        opener.open(url).close()
    except LoaderError as error:
        if is_absent(error):
            return False
        raise
    return True


def _old_model(destination: Destination, opener: Opener) -> _Old:
    try:
        name, content = opener.read(destination.url(SINGLE + INDEX_SUFFIX), MAX_INDEX_BYTES)
    except LoaderError as error:
        if is_absent(error):
            return _Old(None if is_refused(error) else False)
        raise
    try:
        return _Old(True, frozenset(parse_index(content, name).values()))
    except LoaderError:  # a damaged index is replaced; the files that it named stay
        return _Old(True)


def _is_free(destination: Destination, files: Sequence[OutFile], old: _Old) -> bool:
    """Whether files can be published before the switch without affecting readers."""
    names = [file.name for file in files]
    if old.index is None or old.shards.intersection(names):
        return False
    if len(names) == 1 and not old.index:  # this file is the switch
        return True
    if len(names) == 1 and destination.comes_back(SINGLE + INDEX_SUFFIX):  # removing it would not be the switch
        return False
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return all(there is False for there in threads.map(destination.has, names))


def _to_its_end(do: Callable[[], None]) -> None:
    """Run a function in a thread. Ctrl-C is raised after it has ended, so that its result is known."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(int).result()  # starts the thread; Ctrl-C during its start would not wait for the function
        thread.submit(do).result()


@dataclass
class _Writer:
    """Writes the files of one model."""

    destination: Destination
    files: Sequence[OutFile]
    supply: Supply
    wanted: Wanted
    opener: Opener
    began_s: float
    old: _Old
    single: str

    def __post_init__(self) -> None:
        self._part_bytes = part_bytes(self.files)
        self._uploads: dict[int, Upload] = {}
        self._indexed = len(self.files) > 1 or self.files[0].name != self.single
        self._manifest_name = sums.manifest_url(self.single)
        self._published: set[int] = set()  # before the switch
        self._may_be_seen = self._is_seen = False
        self._manifest_fits = False
        self._sums = [[""] * -(-file.header.data_bytes // CHUNK_BYTES) for file in self.files]

    def write(self) -> None:
        """Write everything and switch to it, or leave nothing."""
        load_plan = plan([file.header for file in self.files], chunk_bytes=self._part_bytes)
        try:
            self._each(self._begin)
            meter = Meter(load_plan, self.began_s)
            counters, wanted = self.opener.counters, self.wanted
            Stream(load_plan.chunks, self._part, meter, counters, wanted.connections, wanted.progress).run()
            self._each(self._finish)
            self._switch()
            self._put_manifest()
            self._clear()
        except BaseException as error:
            self._give_up(error)
            raise

    def _switch(self) -> None:
        destination, index = self.destination, SINGLE + INDEX_SUFFIX
        if self._indexed or self.old.index:
            self._each(self._publish)

        def last() -> None:
            try:
                if self._indexed:
                    destination.put(index, encode_index(self.files))
                elif self.old.index:
                    destination.remove(index)
                else:
                    self._uploads[0].publish()
            except LoaderError as error:
                self._is_seen = isinstance(error, NotDurable)
                self._may_be_seen = isinstance(error, (MaybeDone, NotDurable))
                raise
            self._is_seen = True

        self._may_be_seen = True
        _to_its_end(last)

    def _put_manifest(self) -> None:
        """Write the manifest, or remove the old one: it does not fit, and would be in the way of reading."""
        if self.wanted.checksum:
            self.destination.put(self._manifest_name, self._manifest().encode())
        else:
            self._remove(self._manifest_name)
        self._manifest_fits = True

    def _clear(self) -> None:
        """Remove the rest of the old model; no reader uses it any more."""
        for shard in sorted(self.old.shards):
            with suppress(HyperpodError):
                self.destination.remove(shard)
        if self._indexed:
            with suppress(HyperpodError):  # the index first, because readers look for it first
                self._remove(SINGLE)

    def _give_up(self, error: BaseException) -> None:
        """Remove all invisible files. Files that may be the model by now stay."""
        if not self._is_seen:
            self._each(self._abort)
            return
        if not self._manifest_fits:
            with suppress(HyperpodError):
                self._remove(self._manifest_name)
        if not isinstance(error, NotDurable):  # a power failure may bring the old one back
            self._clear()

    def _abort(self, number: int) -> None:
        if number in self._uploads:
            self._uploads[number].abort()
        if number in self._published and not self._may_be_seen:
            with suppress(HyperpodError):
                self.destination.remove(self.files[number].name)

    def _publish(self, number: int) -> None:
        self._published.add(number)
        self._uploads[number].publish()

    def _each(self, do: Callable[[int], None]) -> None:
        """Run a function for each file, by number, several at once. Raises the first error after trying all."""

        def all_of_them() -> None:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                for done in [threads.submit(do, number) for number in range(len(self.files))]:
                    done.result()

        _to_its_end(all_of_them)

    def _begin(self, number: int) -> None:
        file = self.files[number]
        self._uploads[number] = self.destination.begin(file.name, file.header.file_bytes)

    def _finish(self, number: int) -> None:
        file, upload = self.files[number], self._uploads[number]
        if not file.header.data_bytes:
            upload.write(0, 0, [memoryview(file.content)], Cancel())
        upload.finish()

    def _remove(self, name: str) -> None:
        """Remove existing files only: an account that may only write must not need permission to remove others."""
        there = self.destination.has(name)
        if there is None:
            with suppress(LoaderError):
                self.destination.remove(name)
        elif there:
            self.destination.remove(name)

    def _part(self, chunk: Chunk, cancel: Cancel) -> Outcome:
        file = self.files[chunk.file]
        views: list[memoryview] = []
        for begin in range(chunk.place, chunk.place + chunk.length, CHUNK_BYTES):
            end = min(begin + CHUNK_BYTES, chunk.place + chunk.length)
            found = self.supply.read(file, begin, end, cancel)
            if self.wanted.checksum:
                self._sums[chunk.file][begin // CHUNK_BYTES] = sums.digest(*found)
            views += found
        offset = chunk.offset
        if chunk.place == 0:
            views.insert(0, memoryview(file.content))
            offset = 0
        self._uploads[chunk.file].write(chunk.place // self._part_bytes, offset, views, cancel)
        return "read"

    def _manifest(self) -> sums.ModelManifest:
        files = {
            file.name: sums.FileSums(file.header.file_bytes, sums.digest(file.content), tuple(chunks))
            for file, chunks in zip(self.files, self._sums, strict=True)
        }
        return sums.ModelManifest(CHUNK_BYTES, files)
