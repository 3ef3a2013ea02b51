"""Copies files between paths, mounts and object stores; each target appears complete or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from ..core.errors import Conflict, NotFound, SpecError, StoreError
from ..system import portable
from . import remote
from .table import Mounts, resolve_url

CHUNK_BYTES = 8 << 20
Told = Callable[[str, int], None]


def copy(
    source: str, target: str, mounts: Mounts, *, recursive: bool = False, told: Told = lambda path, size: None
) -> int:
    """Copy a file, or with `recursive` a directory, and return the bytes copied. `told` is called per file.

    Either may be a path, a file of a mount or a URL. Where `target` is a directory or ends in "/", the name is kept.
    A file appears under its name once it is complete. Raises NotFound, SpecError, StoreError naming the file.
    """
    here, there = resolve_url(source, mounts), resolve_url(target, mounts)
    refuse_read_only(there, target, mounts)
    if _is_directory(here, mounts):
        if not recursive:
            raise SpecError(f"{source} is a directory; give --recursive to copy all of it")
        base = there.rstrip("/")
        if inside(base, here.rstrip("/")):
            raise SpecError(f"{target} lies inside {source}; a directory cannot be copied into itself")
        pairs = [(path, f"{base}/{name}") for path, name in _walk(here, mounts)]
    else:
        into = target.endswith("/") or _is_directory(there, mounts)
        pairs = [(here, f"{there.rstrip('/')}/{os.path.basename(here)}" if into else there)]
    total = 0
    for path, goal in pairs:
        size = copy_file(path, goal, mounts)
        told(goal, size)
        total += size
    return total


def inside(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it; both without a trailing slash."""
    return path == root or path.startswith(root + "/")


def refuse_read_only(path: str, shown: str, mounts: Mounts) -> None:
    """Raise Conflict where `path` lies on a mount that is read-only."""
    for name, spec in mounts.specs.items():
        if spec.read_only and name in mounts and inside(path.rstrip("/"), mounts[name].rstrip("/")):
            raise Conflict(f"{shown} cannot be written: mount {name!r} is read-only")


def copy_file(source: str, target: str, mounts: Mounts) -> int:
    """Copy one file between resolved addresses and return its bytes; `target` appears complete or not at all."""
    if not remote.is_remote(target):
        return _onto_disk(source, target, mounts)
    system, path = remote.file_system(target, mounts.specs)
    if not remote.is_remote(source):
        with _local_errors(source), open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
        with remote.errors("write", target):
            system.put_file(source, path)
        return size
    origin, origin_path = remote.file_system(source, mounts.specs)
    with remote.errors("copy", source), origin.open(origin_path, "rb") as reader:
        with _publishing(system, path) as writer:
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
        return int(reader.tell())


@contextmanager
def _publishing(system: Any, path: str) -> Iterator[Any]:
    """An object to write to. It appears when the block ends, but not where an exception ends the block."""
    writer = system.open(path, "wb")
    try:
        yield writer
        writer.close()
    except BaseException:
        with suppress(Exception):
            writer.closed = True  # fsspec's own `with` and destructor would publish an incomplete object
            writer.discard()
        raise


def _onto_disk(source: str, target: str, mounts: Mounts) -> int:
    directory = os.path.dirname(target) or "."
    temporary = os.path.join(directory, f".{os.path.basename(target)}.{secrets.token_hex(4)}")
    with _local_errors(target):
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as writer:
                _fill(source, writer, mounts)
                writer.flush()
                os.fsync(writer.fileno())
                size = os.fstat(writer.fileno()).st_size
            os.rename(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    return size


def _fill(source: str, writer: BinaryIO, mounts: Mounts) -> None:
    if remote.is_remote(source):
        system, path = remote.file_system(source, mounts.specs)
        with remote.errors("read", source), system.open(path, "rb") as reader:
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
    else:
        with _local_errors(source), open(source, "rb") as reader:
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)


@contextmanager
def _local_errors(path: str) -> Iterator[None]:
    """Raise the system's errors as ours, with the name of the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename or path} is not there") from error
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror or error}") from error


def _is_directory(address: str, mounts: Mounts) -> bool:
    if not remote.is_remote(address):
        try:
            return stat.S_ISDIR(os.stat(address).st_mode)
        except OSError:
            return False
    system, path = remote.file_system(address, mounts.specs)
    with remote.errors("read", address):
        return bool(system.isdir(path))


def _walk(root: str, mounts: Mounts) -> Iterator[tuple[str, str]]:
    """``(address, relative name)`` of every file below `root`."""
    if not remote.is_remote(root):
        for directory, _, names in os.walk(root):
            for name in sorted(names):
                path = os.path.join(directory, name)
                if os.path.isfile(path):
                    yield path, os.path.relpath(path, root)
        return
    system, base = remote.file_system(root, mounts.specs)
    scheme = root.partition("://")[0]
    with remote.errors("list", root):
        found = system.find(base, detail=True)
    for path, about in found.items():
        if not remote.is_placeholder(path, about):
            yield f"{scheme}://{path.lstrip('/')}", safe_name(path, base, root)


def safe_name(path: str, base: str, shown: str) -> str:
    """The name of an object below `base`, which may become a path; raises SpecError for one that would lead outside."""
    name = path.lstrip("/")[len(base.strip("/")) :].lstrip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise SpecError(f"object {path[:120]!r} of {shown} has a name that is no path below it")
    return name
