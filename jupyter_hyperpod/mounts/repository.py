"""Connects a mount's files to an object store: objects are fetched on first read and written back on command.

An object that is not fetched yet has no file, so that programs that bypass ``shared://`` find nothing rather than
zeros. Each object has a record beside the files, written by rename:

<mount>/.hyperpod/objects/<2 digits>/<digest of its path>.json

States: ``released`` (only in the store), ``imported`` or ``exported`` (the same in both), ``dirty`` (changed or new
here), ``changed`` (changed in the store), ``conflict`` (both).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import Conflict, NotFound, SpecError, StoreError
from ..core.mount_spec import MountSpec
from ..storage.store import write_private
from ..system import portable
from ..system.locks import one_at_a_time
from . import copying, remote
from .table import Mounts

OWN = ".hyperpod"
WAIT_S = 600.0
_MODES = {"private": 0o600, "group": 0o660, "everyone": 0o644}


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one object: its size and ETag in the store, and the version that the file here has."""

    path: str
    size: int
    etag: str
    here_etag: str = ""
    here_bytes: int = -1
    here_ns: int = -1
    origin: str = "released"


class Repository:
    """The object store behind one mount. Raises SpecError where the mount has none."""

    def __init__(self, spec: MountSpec, root: str, specs: Mapping[str, MountSpec]) -> None:
        if not spec.repository:
            raise SpecError(f"mount {spec.name!r} has no repository; `mount add --repository URL` gives it one")
        self.spec = spec
        self.root = os.path.normpath(root)
        self._system, self._base = remote.file_system(spec.repository.rstrip("/"), specs)

    # ---- what is where ------------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Read the store's list of objects, without their content; return their number."""
        with remote.errors("list", self.spec.repository):
            found = self._system.find(self._base, detail=True)
        known = self._records()
        listed = set()
        for path, about in found.items():
            if remote.is_placeholder(path, about):
                continue
            name = copying.safe_name(path, self._base, self.spec.repository)
            if name.split("/")[0] == OWN:
                continue
            listed.add(name)
            size, etag = int(about.get("size") or 0), remote.identity(about)
            record = known.get(name, Record(name, size, etag))
            if name not in known or (record.size, record.etag) != (size, etag):
                self._write(replace(record, size=size, etag=etag))
        for name in known.keys() - listed:
            self._forget(known[name])
        return len(listed)

    def states(self) -> dict[str, tuple[str, int]]:
        """Path -> (state, bytes) of every file here or, by its record, in the store."""
        records = self._records()
        found = {name: (self._state(record), record.size) for name, record in records.items()}
        for directory, directories, names in os.walk(self.root):
            if directory == self.root:
                directories[:] = [name for name in directories if name != OWN]
            for name in names:
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, self.root)
                if relative not in records and os.path.isfile(path):
                    found[relative] = ("dirty", os.path.getsize(path))
        return dict(sorted(found.items()))

    def listed(self, directory: str) -> dict[str, int | None]:
        """Name -> bytes of the store's recorded objects directly in a directory; None for a subdirectory."""
        found: dict[str, int | None] = {}
        for path, record in self._records().items():
            if (inner := child(path, directory)) is not None:
                name, below = inner
                found[name] = None if below else record.size
        return found

    def known(self, name: str) -> int | None:
        """The size of an object by its record; None without one."""
        record = self._read(name)
        return None if record is None else record.size

    def _state(self, record: Record) -> str:
        try:
            about = os.stat(os.path.join(self.root, record.path))
        except OSError:
            return "released"
        same_here = (about.st_size, about.st_mtime_ns) == (record.here_bytes, record.here_ns)
        same_there = record.here_etag == record.etag
        if same_here:
            return record.origin if same_there else "changed"
        return "dirty" if same_there or not record.here_etag else "conflict"

    def select(self, paths: list[str], states: tuple[str, ...]) -> list[str]:
        """The files in one of `states` that equal one of `paths` or lie below one; no paths mean all."""
        chosen = [path.strip("/") for path in paths]
        found = self.states()
        for path in chosen:
            if not any(copying.inside(name, path) for name in found):
                raise NotFound(f"{path!r} is neither on mount {self.spec.name!r} nor known to be in its repository")
        return [
            name
            for name, (state, _) in found.items()
            if state in states and (not chosen or any(copying.inside(name, path) for path in chosen))
        ]

    # ---- moving content -----------------------------------------------------------------------------------

    def fetch(self, name: str) -> str:
        """Fetch the object where the file is missing or old; return its path. Raises NotFound, StoreError."""
        target = self._path(name)
        with self._alone(name):
            record = self._read(name)
            if os.path.lexists(target) and (record is None or self._state(record) not in ("released", "changed")):
                return target
            about = self._about(name)
            temporary = os.path.join(os.path.dirname(target), f".{secrets.token_hex(6)}")
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                self._stay_inside(target)
                os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600))
                with remote.errors("read", self._url(name)):
                    self._system.get_file(self._remote(name), temporary)
                self._finish(name, about, temporary, target)
            except OSError as error:
                raise StoreError(f"{name} cannot be brought to {target}: {error.strerror}") from error
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
        return target

    def _finish(self, name: str, about: Record, temporary: str, target: str) -> None:
        """Give a fetched file its name, if it is complete and of one version."""
        size = os.path.getsize(temporary)
        if size != about.size or self._about(name).etag != about.etag:
            raise StoreError(
                f"{self._url(name)} was changed while it was read ({size} bytes came, expected {about.size}); try again"
            )
        os.chmod(temporary, _MODES[self.spec.access])
        descriptor = os.open(temporary, os.O_RDONLY | portable.NOT_INHERITED)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, target)
        self._write(self._here(about, target, "imported"))

    def export(self, name: str, *, force: bool = False) -> None:
        """Write the file to the store. Raises Conflict where the object was changed meanwhile, unless `force`."""
        source = self._path(name)
        with self._alone(name):
            record = self._read(name)
            expected = record.here_etag if record is not None else ""
            try:
                there = self._about(name).etag
            except NotFound:
                there = ""
            if there != expected and not force:
                raise Conflict(
                    f"{self._url(name)} was changed in the repository since it was imported; look at both, then "
                    "export with --force, or remove the file here and import it again"
                )
            try:
                before = os.stat(source)
                with remote.errors("write", self._url(name)):
                    self._system.put_file(source, self._remote(name))
                after = os.stat(source)
            except OSError as error:
                raise StoreError(f"{source} cannot be exported: {error.strerror}") from error
            about = self._about(name)
            if (before.st_size, before.st_mtime_ns) != (
                after.st_size,
                after.st_mtime_ns,
            ) or about.size != after.st_size:
                raise StoreError(f"{source} was changed while it was exported; it stays dirty, export it again")
            self._write(self._here(about, source, "exported"))

    def release(self, name: str) -> None:
        """Remove the file here. Raises Conflict where the store does not hold the same content."""
        with self._alone(name):
            record = self._read(name)
            state = self._state(record) if record is not None else "dirty"
            if record is None or state not in ("imported", "exported") or self._about(name).etag != record.here_etag:
                raise Conflict(f"{name} is {state}; only what is the same in the repository can be released")
            os.unlink(self._path(name))
            self._write(replace(record, here_etag="", here_bytes=-1, here_ns=-1, origin="released"))

    # ---- addresses ----------------------------------------------------------------------------------------

    def _about(self, name: str) -> Record:
        with remote.errors("read", self._url(name)):
            about: Mapping[str, Any] = self._system.info(self._remote(name))
        if about.get("type") == "directory":
            raise NotFound(f"{self._url(name)} is no object")
        return Record(name, int(about.get("size") or 0), remote.identity(about))

    def _here(self, about: Record, path: str, origin: str) -> Record:
        found = os.stat(path)
        return Record(about.path, about.size, about.etag, about.etag, found.st_size, found.st_mtime_ns, origin)

    def _remote(self, name: str) -> str:
        return f"{self._base.rstrip('/')}/{name}"

    def _url(self, name: str) -> str:
        return f"{self.spec.repository.rstrip('/')}/{name}"

    def _path(self, name: str) -> str:
        path = os.path.normpath(os.path.join(self.root, name))
        if not copying.inside(path, self.root) or path == self.root or copying.inside(name, OWN):
            raise SpecError(f"{name!r} is no file of mount {self.spec.name!r}")
        return path

    def _stay_inside(self, path: str) -> None:
        """Refuse a link that would lead a fetched file out of the mount."""
        if not copying.inside(os.path.realpath(os.path.dirname(path)), os.path.realpath(self.root)):
            raise SpecError(f"{path} leads out of mount {self.spec.name!r} through a link")

    # ---- records ------------------------------------------------------------------------------------------

    def _record_path(self, name: str) -> str:
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
        return os.path.join(self.root, OWN, "objects", digest[:2], f"{digest}.json")

    def _made_record_path(self, name: str) -> str:
        """The path of a record, whose directory is made. Raises StoreError."""
        path = self._record_path(name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        return path

    def _records(self) -> dict[str, Record]:
        found = {}
        for directory, _, names in os.walk(os.path.join(self.root, OWN, "objects")):
            for name in names:
                if name.endswith(".json") and (record := _parse(os.path.join(directory, name))) is not None:
                    found[record.path] = record
        return found

    def _read(self, name: str) -> Record | None:
        return _parse(self._record_path(name))

    def _write(self, record: Record) -> None:
        content = json.dumps(asdict(record)).encode()
        write_private(Path(self._made_record_path(record.path)), content, _MODES[self.spec.access])

    def _forget(self, record: Record) -> None:
        """The object has gone from the store; a file here stays and counts as new."""
        with suppress(OSError):
            os.unlink(self._record_path(record.path))

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Allow one process per file at a time, where the driver has locks; elsewhere two may do the same work."""
        self._path(name)
        path = self._made_record_path(name).removesuffix(".json") + ".lock"
        busy = f"{name} is being imported or exported by another process"
        with one_at_a_time(path, busy, WAIT_S, _MODES[self.spec.access], where_possible=True):
            yield


def child(path: str, directory: str) -> tuple[str, bool] | None:
    """The name in `directory` ("" is the top) that leads to a path, and whether the path lies below it; or None."""
    if directory and not path.startswith(directory + "/"):
        return None
    name, below, _ = path[len(directory) :].removeprefix("/").partition("/")
    return name, bool(below)


def _parse(path: str) -> Record | None:
    try:
        with open(path, encoding="utf-8") as file:
            return Record(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def behind(address: str, mounts: Mounts) -> tuple[Repository, str] | None:
    """The repository behind a file, and its path there; None where the mount has none."""
    for name, spec in mounts.specs.items():
        root = os.path.normpath(mounts[name]) if name in mounts and spec.repository else ""
        if root and copying.inside(address, root) and address != root:
            return Repository(spec, root, mounts.specs), os.path.relpath(address, root)
    return None


def local(address: str, mounts: Mounts) -> str:
    """`address`, ready to be read: a file that is only in a mount's repository is fetched first. Raises StoreError.

    This is the import on first read. For a file in neither place the reader raises its own error.
    """
    if remote.is_remote(address) or os.path.lexists(address):
        return address
    found = behind(address, mounts)
    if found is not None:
        with suppress(NotFound):
            found[0].fetch(found[1])
    return address
