"""Gives a whole model as a path of this node, for engines that open paths.

<block cache>/models/<digest>/<name>    the files of a model of an object store; the digest is of address and versions

All processes of a node share them. A folder appears by a rename, so it is whole or absent. In a job the first member
records the versions, and no member gets other ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock

from ..core.errors import HyperpodError, LoaderError, NotFound, StoreError
from ..core.names import public_name
from ..mounts import copying, remote, repository
from ..mounts.block_cache import BlockCache
from ..mounts.table import Mounts, known_mounts, resolve_url
from ..storage.source_record import SourceRecord
from ..system.locks import one_at_a_time
from . import hub
from .header import INDEX_SUFFIX, SINGLE, parse_index
from .read.http_connection import Cancel
from .read.source import Source
from .read.sources import Opener
from .urls import inside, path_in, scheme_of

FOLDER = "models"
KEPT_S = 7 * 86400.0  # a model that no process has begun to use for so long is removed when another one is fetched
WAIT_S = 6 * 3600.0
CONNECTIONS = 8
CHUNK_BYTES = 8 << 20
INDEX_LIMIT_BYTES = 100_000_000
FILES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx")  # a URL that ends so names one file
CONFIG = "config.json"
# what a folder of a model may have beside config.json and the weights: a web server does not list its folders
BESIDE = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.txt", "merges.txt", "chat_template.jinja"),
    *("chat_template.json", "preprocessor_config.json", "processor_config.json"),
)
Report = Callable[[int, int], None]


def local_model(address: str, report: Report = lambda done, whole: None) -> str:
    """The path, on this node, of a model: a folder or a file. A path stays what it is.

    A model of an object store or a web server is fetched whole, once per node; ``report(bytes_done, bytes_in_all)`` is
    called meanwhile. Raises NotFound, SpecError, LoaderError for what cannot be read, and StoreError for a full disk
    and where the model has changed since another member of the job has read it.
    """
    if hub.is_hub(address):
        return hub.hub_path(address)
    mounts = known_mounts()
    found = repository.local(resolve_url(address, mounts), mounts)
    if not remote.is_remote(found):
        if not os.path.exists(found):
            raise NotFound(f"{address}: there is no file or folder {found}")
        return found
    with closing(Opener()) as opener, closing(_Sources(opener, _addresses(found, mounts, opener))) as sources:
        folder = _fetched(found, sources, report)
        return str(folder / next(iter(sources.found)) if _is_file(found, sources.found) else folder)


class _Sources:
    """The opened files of a model, name -> source; a file that need not be there may be absent."""

    def __init__(self, opener: Opener, addresses: Mapping[str, tuple[str, bool]]) -> None:
        self.found: dict[str, Source] = {}
        for name, (url, needed) in addresses.items():
            try:
                self.found[name] = opener.open(url)
            except LoaderError as error:
                if needed or not error.found.startswith("nothing"):
                    self.close()
                    raise

    def close(self) -> None:
        for source in self.found.values():
            with suppress(HyperpodError):
                source.close()


def _is_file(url: str, found: Mapping[str, Source]) -> bool:
    return len(found) == 1 and path_in(url).rstrip("/").rpartition("/")[2] == next(iter(found))


def _addresses(url: str, mounts: Mounts, opener: Opener) -> dict[str, tuple[str, bool]]:
    """The files of the model, name -> address, and whether it has to be there."""
    name = path_in(url).rstrip("/").rpartition("/")[2]
    if name.endswith(FILES):
        return {name: (url, True)}
    if scheme_of(url) in ("http", "https"):
        return _on_the_web(url, opener)
    system, base = remote.file_system(url, mounts.specs)
    with remote.errors("list", public_name(url)):
        listed = system.find(base, detail=True)
    scheme, found = url.partition("://")[0], {}
    for path, about in listed.items():
        if not remote.is_placeholder(path, about):
            found[copying.safe_name(path, base, public_name(url))] = f"{scheme}://{path.lstrip('/')}", True
    if not found:
        raise NotFound(f"{public_name(url)}: there are no files")
    return found


def _on_the_web(url: str, opener: Opener) -> dict[str, tuple[str, bool]]:
    """The files of a folder that nothing lists, by their usual names."""
    try:
        index = opener.read(inside(url, SINGLE + INDEX_SUFFIX), INDEX_LIMIT_BYTES)
    except LoaderError as error:
        if not error.found.startswith("nothing"):
            raise
        weights = [SINGLE]
    else:
        weights = [SINGLE + INDEX_SUFFIX, *sorted(set(parse_index(index[1], index[0]).values()))]
    needed = {name: (inside(url, name), True) for name in (CONFIG, *weights)}
    return needed | {name: (inside(url, name), False) for name in BESIDE}


def _fetched(url: str, sources: _Sources, report: Report) -> Path:
    """The folder with the files, all of the versions that are there now."""
    versions = "\0".join(f"{name}\0{source.size}\0{source.etag}" for name, source in sorted(sources.found.items()))
    digest = hashlib.sha256(f"{public_name(url)}\0{versions}".encode()).hexdigest()[:40]
    models = BlockCache().root / FOLDER
    job = os.environ.get(hub.JOB_VARIABLE)
    known = SourceRecord(Path(job)).of(f"model {public_name(url)}", digest.encode()).decode() if job else digest
    folder, part = models / known, models / f".{digest}.part"
    try:
        models.mkdir(mode=0o700, parents=True, exist_ok=True)
        with one_at_a_time(models / f".{digest}.lock", f"{public_name(url)} is being fetched by another", WAIT_S):
            if not folder.exists():
                if known != digest:
                    raise StoreError(
                        f"{public_name(url)} has changed since the job began to read it; give another model a new name"
                    )
                _remove_old(models)
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(mode=0o700)
                try:
                    _fetch(sources, part, report)
                    part.rename(folder)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
            os.utime(folder)
    except OSError as error:
        raise StoreError(f"{public_name(url)} cannot be kept in {models}: {error.strerror}") from error
    return folder


def _fetch(sources: _Sources, folder: Path, report: Report) -> None:
    """Read all files into the folder, several chunks at a time."""
    whole, done, lock = sum(source.size for source in sources.found.values()), 0, Lock()

    def chunk(source: Source, descriptor: int, offset: int, cancel: Cancel) -> None:
        nonlocal done
        content = bytearray(min(CHUNK_BYTES, source.size - offset))
        source.read_into(offset, memoryview(content), cancel)
        rest, at = memoryview(content), offset
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written
        with lock:
            done += len(content)
            report(done, whole)

    report(0, whole)
    opened: list[int] = []
    cancels: list[Cancel] = []
    with ThreadPoolExecutor(CONNECTIONS, "model") as threads:
        try:
            work = []
            for source, descriptor in _targets(sources, folder, opened):
                for offset in range(0, source.size, CHUNK_BYTES):
                    cancels.append(Cancel())
                    work.append(threads.submit(chunk, source, descriptor, offset, cancels[-1]))
            for one in wait(work, return_when=FIRST_EXCEPTION).done:
                one.result()
            for descriptor in opened:
                os.fsync(descriptor)
        finally:
            for cancel in cancels:
                cancel.cancel()
            threads.shutdown(cancel_futures=True)
            for descriptor in opened:
                os.close(descriptor)
    for source in sources.found.values():
        source.close()


def _targets(sources: _Sources, folder: Path, opened: list[int]) -> Iterator[tuple[Source, int]]:
    for name, source in sources.found.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield source, opened[-1]


def _remove_old(models: Path) -> None:
    """Remove what nobody has begun to use for long. Processes that have its files open keep them."""
    for folder in models.iterdir():
        if not folder.name.startswith(".") and time.time() - folder.stat().st_mtime > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)
