"""The files of one mount as a file browser wants them: a page of a directory, a file's content, a new name.

Mounted file systems are asked by processes of their own, for a bounded time (`probe`); object stores through fsspec,
whose clients have time limits. Paths are relative to the mount, without a leading slash.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ..core.errors import Conflict, HyperpodError, NotFound, SpecError
from ..core.spec import MountSpec
from . import mounts, probe, remote
from .copying import CHUNK_BYTES, safe_name
from .repository import Repository
from .store import Store

PAGE = 1000
ASK_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 600.0
KINDS: Mapping[int, type[HyperpodError]] = MappingProxyType(
    dict.fromkeys(
        (
            errno.EEXIST,
            errno.ENOTEMPTY,
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.EISDIR,
            errno.ENOTDIR,
            errno.EBUSY,
        ),
        Conflict,
    )
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


class Shelf(Protocol):
    """One mount. Methods raise NotFound, Conflict, SpecError for a path that is none, StoreError, Hangs among them."""

    def look(self, path: str) -> Item:
        """What is there."""

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        """Entries of a directory by name, from behind `after` on, and what to ask for next; None for no more."""

    def content(self, path: str) -> Iterator[bytes]:
        """The blocks of a file."""

    def put(self, path: str, source: Path) -> None:
        """Have the content of a local file there, whole or not at all."""

    def make(self, path: str) -> None:
        """A new directory."""

    def move(self, path: str, to: str) -> None:
        """Another name; nothing is replaced."""

    def remove(self, path: str) -> None:
        """Away with a file or an empty directory."""

    def discard(self, path: str) -> None:
        """Have a file, or a directory with what is in it, in the mount's trash: ``.Trash-UID``."""


def shelf(store: Store, name: str) -> Shelf:
    """Return the files of a mount. Raises NotFound for no such mount, Conflict for one that is not mounted here."""
    spec = mounts.get(store, name)
    if spec.driver == "s3":
        return ObjectShelf(spec)
    found = mounts.roots([spec], "notebook")
    if name not in found:
        raise Conflict(found.absent[name])
    return RepositoryShelf(store, spec) if spec.repository else FileShelf(store, spec)


def _refuse_read_only(spec: MountSpec) -> None:
    if spec.read_only:
        raise Conflict(f"mount {spec.name!r} is read-only")


class FileShelf:
    """A mounted file system."""

    def __init__(self, store: Store, spec: MountSpec) -> None:
        self._store, self._spec = store, spec

    def look(self, path: str) -> Item:
        """See Shelf."""
        return self._item(self._ask("look", path))

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        """See Shelf."""
        found = self._ask("page", path, after, str(PAGE))
        return [self._item(entry) for entry in found["entries"]], found["after"]

    def content(self, path: str) -> Iterator[bytes]:
        """See Shelf."""
        return probe.content_of(self._spec.name, self._spec.notebook_path, path, ASK_TIMEOUT_S, KINDS)

    def put(self, path: str, source: Path) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        with open(source, "rb") as content:
            self._ask("write", path, content=content, timeout_s=WRITE_TIMEOUT_S, lane="write")

    def make(self, path: str) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        self._ask("make", path)

    def move(self, path: str, to: str) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        self._ask("move", path, to)

    def remove(self, path: str) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        self._ask("remove", path)

    def discard(self, path: str) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        self._ask("discard", path)

    def _ask(self, operation: str, *arguments: str, timeout_s: float = ASK_TIMEOUT_S, **named: Any) -> dict[str, Any]:
        named |= {"script": probe.FILING, "kinds": KINDS, "shown": arguments[0] or "/", "timeout_s": timeout_s}
        root = self._spec.notebook_path
        return probe.ask(self._store, self._spec.name, operation, root, *arguments, **named)[-1]

    def _item(self, entry: Mapping[str, Any]) -> Item:
        return Item(**{**entry, "writable": entry["writable"] and not self._spec.read_only})


class RepositoryShelf(FileShelf):
    """A file system with an object store behind it: what only the store has is there, too, and is brought when read."""

    def __init__(self, store: Store, spec: MountSpec) -> None:
        super().__init__(store, spec)
        self._repository = Repository(spec, spec.notebook_path, mounts.table(store))

    def look(self, path: str) -> Item:
        """See Shelf."""
        try:
            return super().look(path)
        except NotFound:
            directory, _, name = path.rpartition("/")
            if (item := self._listed(directory).get(name)) is None:
                raise
            return item

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        """See Shelf."""
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

    def content(self, path: str) -> Iterator[bytes]:
        """See Shelf."""
        try:
            super().look(path)
        except NotFound:
            self._repository.fetch(path)
        return super().content(path)

    def _listed(self, directory: str) -> dict[str, Item]:
        writable = not self._spec.read_only
        return {
            name: Item(name, "directory" if size is None else "file", size or 0, 0, writable)
            for name, size in self._repository.listed(directory).items()
        }


class ObjectShelf:
    """A bucket, or what lies below a prefix of one."""

    def __init__(self, spec: MountSpec) -> None:
        self._spec = spec

    def look(self, path: str) -> Item:
        """See Shelf."""
        name = path.rpartition("/")[2]
        if not path:
            return Item(name, "directory", 0, 0, not self._spec.read_only)
        system, place = self._at(path)
        with remote.errors("read", self._url(path)):
            return self._item(remote.entry(system.info(place)) | {"name": name})

    def page(self, path: str, after: str) -> tuple[list[Item], str | None]:
        """See Shelf."""
        found = remote.listing(self._url(path), {self._spec.name: self._spec})
        entries = sorted((one for one in found if one["name"] > after), key=lambda one: str(one["name"]))
        return [self._item(one) for one in entries[:PAGE]], entries[PAGE - 1]["name"] if len(entries) > PAGE else None

    def content(self, path: str) -> Iterator[bytes]:
        """See Shelf."""
        system, place = self._at(path)
        with remote.errors("read", self._url(path)), system.open(place, "rb", cache_type="none") as file:
            while block := file.read(CHUNK_BYTES):
                yield block

    def put(self, path: str, source: Path) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        system, place = self._at(path)
        with remote.errors("write", self._url(path)):
            system.put_file(str(source), place)

    def make(self, path: str) -> None:
        """See Shelf: there are no directories without anything in them."""
        raise Conflict(f"mount {self._spec.name!r} is an object store, which has no empty directories: upload a file")

    def move(self, path: str, to: str) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        system, place = self._at(path)
        _, goal = self._at(to)
        if self.look(path).kind != "file":
            raise Conflict(f"mount {self._spec.name!r} is an object store, where only single objects are renamed")
        with remote.errors("rename", self._url(path)):
            if system.exists(goal):
                raise Conflict(f"{self._url(to)} is there already")
            system.mv(place, goal)

    def remove(self, path: str) -> None:
        """See Shelf."""
        _refuse_read_only(self._spec)
        if self.look(path).kind != "file":
            raise Conflict(f"{self._url(path)} is not empty")
        system, place = self._at(path)
        with remote.errors("remove", self._url(path)):
            system.rm_file(place)

    def discard(self, path: str) -> None:
        """See Shelf: for single objects."""
        self.move(path, f".Trash-{os.getuid()}/files/{path.rpartition('/')[2]}.{secrets.token_hex(4)}")

    def _url(self, path: str) -> str:
        base = self._spec.source.rstrip("/")
        return f"{base}/{safe_name(path, '', base)}" if path else base

    def _at(self, path: str) -> tuple[Any, str]:
        return remote.file_system(self._url(path), {self._spec.name: self._spec})

    def _item(self, entry: Mapping[str, Any]) -> Item:
        fields = {name: entry[name] for name in ("name", "kind", "bytes", "changed_ns")}
        return Item(**fields, writable=not self._spec.read_only)
