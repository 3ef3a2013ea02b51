"""The files of one mount for a file browser: list a page of a directory, read, write, rename, remove.

Separate processes access mounted file systems, for a bounded time (`probe`); object stores are accessed through fsspec,
whose clients have time limits. Paths are relative to the mount, without a leading slash.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ..core.errors import Conflict, Denied, HyperpodError, NotFound, SpecError
from ..core.mount_spec import MountSpec
from ..storage.store import Store
from ..system import portable
from . import probe, remote, table
from .copying import CHUNK_BYTES, safe_name
from .repository import Repository

PAGE = 1000
LONGEST_PATH_BYTES = 4096
ASK_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 600.0
KINDS: Mapping[int, type[HyperpodError]] = MappingProxyType(
    dict.fromkeys((errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EBUSY), Conflict)
    | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Denied)
    | dict.fromkeys((errno.EINVAL, errno.EXDEV, errno.ENAMETOOLONG, errno.ELOOP), SpecError)
)


@dataclass(frozen=True, slots=True)
class Item:
    """A file or a directory; `kind` is file, directory or other. `changed_ns` is since the epoch, 0 if unknown."""

    name: str
    kind: str
    bytes: int
    changed_ns: int
    writable: bool


class FileBlocks(Protocol):
    """The blocks of a file, in order; `item` is the opened file. Close it; closing twice is harmless."""

    item: Item

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...

    def close(self) -> None: ...


class MountFiles(Protocol):
    """One mount. Methods raise NotFound, Conflict, Denied, SpecError for no path, StoreError (also Hangs)."""

    def look(self, path: str) -> Item:
        """Describe a file or a directory."""

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        """Entries of a directory by name, beginning behind `after`, and the next `after`; None at the end."""

    def content(self, path: str) -> FileBlocks:
        """Open a file."""

    def put(self, path: str, source: Path) -> None:
        """Upload a local file, completely or not at all."""

    def make(self, path: str) -> None:
        """Create a directory."""

    def move(self, path: str, to: str) -> None:
        """Rename; never replaces anything."""

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory."""

    def discard(self, path: str) -> None:
        """Move a file, or a directory with its content, into the mount's trash: ``.Trash-UID``."""


def mount_files(store: Store, name: str) -> MountFiles:
    """Return the files of a mount. Raises NotFound for an unknown mount, Conflict for one that is not mounted here."""
    spec = table.get(store, name)
    if spec.driver == "s3":
        return ObjectFiles(spec)
    found = table.roots([spec], "notebook")
    if name not in found:
        raise Conflict(found.absent[name])
    return RepositoryFiles(store, spec) if spec.repository else DirectoryFiles(store, spec)


def checked(path: str) -> str:
    """Return the path if it is valid on a file system. Raises SpecError."""
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise SpecError("a path that is no text") from None
    if "\0" in path or length > LONGEST_PATH_BYTES:
        raise SpecError(f"a path of {length} bytes, or with a zero byte; expected at most {LONGEST_PATH_BYTES}")
    return path


def _refuse_read_only(spec: MountSpec) -> None:
    if spec.read_only:
        raise Denied(f"mount {spec.name!r} is read-only")


def _item(spec: MountSpec, told: Mapping[str, Any]) -> Item:
    """Build an Item from a record of `file_operations`."""
    return Item(**{**told, "writable": told["writable"] and not spec.read_only})


class FileContent(probe.ProbedContent):
    """A file of a mounted file system, as `FileBlocks`."""

    def __init__(self, spec: MountSpec, path: str) -> None:
        super().__init__(spec.name, spec.notebook_path, path, ASK_TIMEOUT_S, KINDS)
        self.item = _item(spec, self.about)


class ObjectContent:
    """An object, as `FileBlocks`."""

    def __init__(self, item: Item, url: str, file: Any) -> None:
        self.item = item
        self._url, self._file = url, file

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with remote.errors("read", self._url):
            if block := bytes(self._file.read(CHUNK_BYTES)):
                return block
        raise StopIteration

    def close(self) -> None:
        self._file.close()


class DirectoryFiles:
    """A mounted file system, as `MountFiles`."""

    def __init__(self, store: Store, spec: MountSpec) -> None:
        self._store, self._spec = store, spec

    def look(self, path: str) -> Item:
        return _item(self._spec, self._ask("look", path))

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        found = self._ask("page", path, after, str(PAGE))
        return [_item(self._spec, entry) for entry in found["entries"]], found["after"]

    def content(self, path: str) -> FileBlocks:
        return FileContent(self._spec, path)

    def put(self, path: str, source: Path) -> None:
        _refuse_read_only(self._spec)
        with open(source, "rb") as content:
            self._ask("write", path, content=content, timeout_s=WRITE_TIMEOUT_S, lane="write")

    def make(self, path: str) -> None:
        _refuse_read_only(self._spec)
        self._ask("make", path)

    def move(self, path: str, to: str) -> None:
        self._change("move", path, to)

    def remove(self, path: str) -> None:
        self._change("remove", path)

    def discard(self, path: str) -> None:
        self._change("discard", path)

    def _change(self, operation: str, path: str, *more: str) -> None:
        _refuse_read_only(self._spec)
        self._ask(operation, path, *more)

    def _ask(
        self, operation: str, path: str, *more: str, timeout_s: float | None = None, **named: Any
    ) -> dict[str, Any]:
        arguments = [operation, self._spec.notebook_path, *map(checked, (path, *more))]
        named |= {"script": probe.FILING, "kinds": KINDS, "shown": path or "/"}
        named["timeout_s"] = timeout_s or ASK_TIMEOUT_S
        return probe.ask(self._store, self._spec.name, *arguments, **named)[-1]


class RepositoryFiles(DirectoryFiles):
    """A file system with an object store behind it: lists the store's objects, too, and fetches them when read."""

    def __init__(self, store: Store, spec: MountSpec) -> None:
        super().__init__(store, spec)
        self._repository = Repository(spec, spec.notebook_path, table.table(store))

    def look(self, path: str) -> Item:
        try:
            return super().look(path)
        except NotFound:
            directory, _, name = path.rpartition("/")
            if (size := self._repository.known(path)) is not None:
                return self._behind(name, size)
            if (item := self._listed(directory).get(name)) is None:
                raise
            return item

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        listed = self._listed(path)
        try:
            here, following = super().page(path, after)
        except NotFound:
            if not listed:
                raise
            here, following = [], None
        for one in here:
            listed.pop(one.name, None)
        behind = [one for name, one in listed.items() if name > after and (following is None or name <= following)]
        every = sorted((*here, *behind), key=lambda one: one.name)
        return every[:PAGE], every[PAGE - 1].name if len(every) > PAGE else following

    def content(self, path: str) -> FileBlocks:
        try:
            return super().content(path)
        except NotFound:
            self._repository.fetch(path)
            return super().content(path)

    def _change(self, operation: str, path: str, *more: str) -> None:
        """See DirectoryFiles. Raises Denied for objects that only the store has."""
        try:
            super()._change(operation, path, *more)
        except NotFound:
            self.look(path)
            raise Denied(
                f"{path} is in the object store behind mount {self._spec.name!r} only: change it there"
            ) from None

    def _listed(self, directory: str) -> dict[str, Item]:
        return {name: self._behind(name, size) for name, size in self._repository.listed(directory).items()}

    def _behind(self, name: str, size: int | None) -> Item:
        return Item(name, "directory" if size is None else "file", size or 0, 0, not self._spec.read_only)


class ObjectFiles:
    """A bucket, or the objects below a prefix of a bucket, as `MountFiles`."""

    def __init__(self, spec: MountSpec) -> None:
        self._spec = spec

    def look(self, path: str) -> Item:
        name = path.rpartition("/")[2]
        if not path:
            return Item(name, "directory", 0, 0, not self._spec.read_only)
        system, place = self._at(path)
        with remote.errors("read", self._url(path)):
            return self._item(remote.entry(system.info(place)) | {"name": name})

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        found = remote.listing(self._url(path), {self._spec.name: self._spec})
        entries = sorted((one for one in found if one["name"] > after), key=lambda one: str(one["name"]))
        return [self._item(one) for one in entries[:PAGE]], entries[PAGE - 1]["name"] if len(entries) > PAGE else None

    def content(self, path: str) -> FileBlocks:
        item, url = self.look(path), self._url(path)
        if item.kind != "file":
            raise Conflict(f"{url} is no object but a {item.kind}")
        system, place = self._at(path)
        with remote.errors("read", url):
            return ObjectContent(item, url, system.open(place, "rb", cache_type="none"))

    def put(self, path: str, source: Path) -> None:
        _refuse_read_only(self._spec)
        system, place = self._at(path)
        with remote.errors("write", self._url(path)):
            if system.isdir(place):
                raise Conflict(f"{self._url(path)} is a directory: objects lie below it")
            system.put_file(str(source), place)

    def make(self, path: str) -> None:
        raise Denied(f"mount {self._spec.name!r} is an object store, which has no empty directories: upload a file")

    def move(self, path: str, to: str) -> None:
        _refuse_read_only(self._spec)
        system, place = self._at(path)
        _, goal = self._at(to)
        if self.look(path).kind != "file":
            raise Denied(f"mount {self._spec.name!r} is an object store, where only single objects change their names")
        with remote.errors("rename", self._url(path)):
            if system.exists(goal):
                raise Conflict(f"{self._url(to)} is there already")
            system.cp_file(place, goal)  # `mv` would treat a name as a pattern
            system.rm_file(place)

    def remove(self, path: str) -> None:
        _refuse_read_only(self._spec)
        if self.look(path).kind != "file":
            raise Conflict(f"{self._url(path)} is not empty")
        system, place = self._at(path)
        with remote.errors("remove", self._url(path)):
            system.rm_file(place)

    def discard(self, path: str) -> None:
        self.move(path, f".Trash-{portable.user_id()}/{secrets.token_hex(4)}/{path}")

    def _url(self, path: str) -> str:
        checked(path)
        base = self._spec.source.rstrip("/")
        return f"{base}/{safe_name(path, '', base)}" if path else base

    def _at(self, path: str) -> tuple[Any, str]:
        return remote.file_system(self._url(path), {self._spec.name: self._spec})

    def _item(self, entry: Mapping[str, Any]) -> Item:
        fields = {name: entry[name] for name in ("name", "kind", "bytes", "changed_ns")}
        return Item(**fields, writable=not self._spec.read_only)
