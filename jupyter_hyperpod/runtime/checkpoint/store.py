"""Durable checkpoints as files: drafts, committed by their manifest, and verified before they are loaded.

<path>/step-000000000040-<token>/state.safetensors   tensors; for a replica of several ranks, one file per rank
<path>/step-000000000040-<token>/manifest.json       step, session, the files' sizes and SHA-256; written last
<path>/.saving-<token>/                              a draft in progress; its writer holds a lock
<path>/.saving-<token>.lock

A checkpoint is valid if its manifest is complete and every file matches it. A kill, a full disk or a driver whose
rename is not atomic can therefore leave an invalid checkpoint, but never a wrong one that looks valid. Nothing here or
in `dcp` is ever unpickled. Other users must not be able to write the files: owner and mode are checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import SpecError, StoreError, TrainingError
from ...mounts import table
from ...mounts.pod_disk import goes_with_pod
from ...mounts.table import known_mounts, resolve_url
from ...system.locks import take_lock

FORMAT = 1
MANIFEST = "manifest.json"
READ_BYTES = 4 << 20
ABANDONED_S = 3600.0  # without locks, a draft without changes for this time counts as abandoned
_COMMITTED = re.compile(r"step-(\d{12})-([0-9a-f]{12})")
_SAVING = ".saving-"
GOES_WITH_POD = (
    "checkpoint path {path!r} is on the disk of one pod: it is lost with the pod, and no other pod sees it. Expected a "
    "directory that all pods may write: a volume claim, --kubernetes claim=NAME:/PATH"
)
Files = Mapping[str, tuple[int, str]]  # name -> (bytes, SHA-256 in hex)
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Refused(TrainingError):
    """A checkpoint that must not be loaded, with what was found and what was expected."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(path)} is not loaded: {reason}")
        self.path = os.fspath(path)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a session keeps durable checkpoints: ``hp.Session(..., checkpoint=hp.Checkpoint("shared://runs/x"))``.

    The ``keep`` newest ones stay. One is written every ``every_steps`` steps or ``every_s`` seconds; where neither is
    given, the interval follows from the failures seen and the cost measured. ``at_end``: one more when the session
    ends. Raises SpecError for settings that make no sense.
    """

    path: str
    keep: int = 3
    every_steps: int | None = None
    every_s: float | None = None
    at_end: bool = True

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise SpecError(f"keep is {self.keep}; expected at least 1 checkpoint")
        if self.every_steps is not None and self.every_s is not None:
            raise SpecError("every_steps and every_s are both given; expected one of them, or neither")
        if self.every_steps is not None and self.every_steps < 1:
            raise SpecError(f"every_steps is {self.every_steps}; expected at least 1 step")
        if self.every_s is not None and not self.every_s > 0:
            raise SpecError(f"every_s is {self.every_s}; expected more than 0 seconds")

    @property
    def directory(self) -> Directory:
        """Their directory on this machine; raises SpecError for anything but a path on a mount."""
        known = known_mounts()
        path = resolve_url(os.fspath(self.path), known)
        if "://" in path:
            raise SpecError(f"checkpoint path {path!r} is no directory; expected one on a mount, as shared://runs/x")
        absolute = Path(path).absolute()
        if goes_with_pod(absolute):
            raise SpecError(GOES_WITH_POD.format(path=path))
        table.make_way(path, known)
        return Directory(absolute)


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """The description of a checkpoint. ``skeletons``: one per rank of the replica that wrote it."""

    step: int
    token: str
    session: Mapping[str, Any]
    skeletons: Sequence[Any]
    files: Files

    @property
    def name(self) -> str:
        """The name of its directory."""
        return name_of(self.step, self.token)

    @property
    def size_bytes(self) -> int:
        """The size of all its files."""
        return sum(size for size, _ in self.files.values())

    def encode(self) -> bytes:
        """The text of the file: the manifest after its own SHA-256."""
        content = {"format": FORMAT, "step": self.step, "token": self.token, "session": self.session}
        skeleton = self.skeletons[0] if len(self.skeletons) == 1 else list(self.skeletons)
        content |= {"skeleton": skeleton, "files": {name: list(about) for name, about in self.files.items()}}
        text = json.dumps(content, separators=(",", ":")).encode()
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text

    @classmethod
    def decode(cls, content: bytes) -> CheckpointManifest:
        """Inverse of `encode`; raises ValueError for anything else."""
        digest, _, text = content.partition(b"\n")
        if (found := hashlib.sha256(text).hexdigest().encode()) != digest:
            raise ValueError(f"SHA-256 {found[:12].decode()}…, expected {digest[:12].decode(errors='replace')}…")
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}, expected {FORMAT}: it was written by another version")
        files = {str(name): (int(size), str(sha)) for name, (size, sha) in record["files"].items()}
        skeleton = record["skeleton"]
        skeletons = skeleton if isinstance(skeleton, list) else [skeleton]
        return cls(int(record["step"]), str(record["token"]), record["session"], skeletons, files)


@dataclass
class Draft:
    """A checkpoint in progress, invisible to readers before `Directory.commit`."""

    path: Path
    lock: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Directory:
    """The checkpoints of one run."""

    path: Path

    def check(self) -> None:
        """Raise SpecError where other users could write to the directory; a missing one is allowed."""
        if reason := _unsafe(self.path, directory=True):
            raise SpecError(
                f"checkpoints in {self.path} cannot be trusted: {reason}; make it your own with "
                f"`chmod 700 {shlex.quote(os.fspath(self.path))}`, or choose another path"
            )

    def committed(self) -> Iterator[tuple[int, Path]]:
        """``(step, path)`` of every committed checkpoint, newest first, not yet verified."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        found = ((match, self.path / name) for name in names if (match := _COMMITTED.fullmatch(name)))
        yield from sorted(((int(match[1]), path) for match, path in found), reverse=True)

    def manifest(self, path: Path) -> CheckpointManifest:
        """Read the manifest of one and compare the sizes of its files. Raises Refused."""
        if reason := _unsafe(path, directory=True):
            raise Refused(path, reason)
        try:
            found = CheckpointManifest.decode(_read(path / MANIFEST))
        except FileNotFoundError:
            raise Refused(path, f"there is no {MANIFEST}: it was never finished") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(path, f"{MANIFEST} is damaged: {error}") from error
        if found.name != path.name:
            raise Refused(path, f"{MANIFEST} is that of {found.name}")
        for name, (size, _) in found.files.items():
            if os.path.basename(name) != name:
                raise Refused(path, f"{MANIFEST} names {name!r}, which is no file beside it")
            try:
                about = os.lstat(path / name)
            except OSError as error:
                raise Refused(path, f"{name} cannot be read: {error.strerror}") from error
            if reason := _unsafe(path / name):
                raise Refused(path, reason)
            if about.st_size != size:
                raise Refused(path, f"{name} holds {about.st_size} bytes, expected {size}")
        return found

    def verify(self, manifest: CheckpointManifest, name: str, between: Callable[[], None] = lambda: None) -> Path:
        """Compare every byte of one file with the manifest and return its path. Raises Refused.

        `between` is called while reading and may raise to give up.
        """
        path = self.path / manifest.name
        if name not in manifest.files:
            raise Refused(path, f"{MANIFEST} names no {name}")
        size, expected = manifest.files[name]
        sha = hashlib.sha256()
        try:
            with open(path / name, "rb") as file:
                while chunk := file.read(READ_BYTES):
                    sha.update(chunk)
                    between()
        except OSError as error:
            raise Refused(path, f"{name} cannot be read: {error.strerror}") from error
        if (found := sha.hexdigest()) != expected:
            raise Refused(path, f"{name} ({size} bytes) has SHA-256 {found[:12]}…, expected {expected[:12]}…")
        return path / name

    def drafted(self, token: str) -> Path:
        """The directory of the draft with this token."""
        return self.path / f"{_SAVING}{token}"

    def draft(self, token: str) -> Draft:
        """Begin a draft. Raises StoreError where it cannot be written."""
        path = self.drafted(token)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{path}.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"checkpoints cannot be written to {self.path}: {error.strerror}") from error
        draft = Draft(path, lock)
        with suppress(OSError):
            take_lock(lock)
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            self.discard(draft)
            raise StoreError(f"checkpoints cannot be written to {self.path}: {error.strerror}") from error
        return draft

    def commit(self, draft: Draft, manifest: CheckpointManifest) -> Path:
        """Write the manifest, which marks a complete checkpoint, and rename the draft. Raises OSError."""
        write(draft.path / MANIFEST, [manifest.encode()])
        _sync(draft.path)
        final = self.path / manifest.name
        os.rename(draft.path, final)
        _sync(self.path)
        self.discard(draft)
        return final

    def discard(self, draft: Draft) -> None:
        """Remove a draft; of a committed one, only its lock."""
        shutil.rmtree(draft.path, ignore_errors=True)
        with suppress(OSError):
            os.unlink(f"{draft.path}.lock")
        if draft.lock >= 0:
            os.close(draft.lock)
            draft.lock = -1

    def prune(self, keep: int) -> None:
        """Remove all but the `keep` newest complete ones."""
        whole = 0
        for _, path in list(self.committed()):
            if whole >= keep:
                shutil.rmtree(path, ignore_errors=True)
                continue
            with suppress(Refused):
                self.manifest(path)
                whole += 1

    def tidy(self) -> None:
        """Remove drafts of killed writers. Never raises: the next call tries again."""
        with suppress(OSError):
            names = {name.removesuffix(".lock") for name in os.listdir(self.path) if name.startswith(_SAVING)}
            for name in names:  # some have only a lock: their writer was killed before it made the directory
                _remove_abandoned(self.path / name)


def write(
    path: Path, parts: Iterable[memoryview | bytes], between: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Write `parts` to a new private file, synced; return its bytes and SHA-256. `between` may raise to give up."""
    sha, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), READ_BYTES):
                between()
                chunk = view[start : start + READ_BYTES]
                sha.update(chunk)
                while len(chunk):
                    chunk = chunk[file.write(chunk) or 0 :]
            size += len(view)
        os.fsync(file.fileno())
    return size, sha.hexdigest()


def name_of(step: int, token: str) -> str:
    """The name of the directory of a checkpoint."""
    return f"step-{step:012d}-{token}"


def new_token() -> str:
    """A random token that distinguishes checkpoints of the same step."""
    return secrets.token_hex(6)


def _unsafe(path: Path, directory: bool = False) -> str:
    """Why other users could have written a file; empty where they could not, or where it does not exist."""
    try:
        about = os.lstat(path)
    except OSError:
        return ""
    if directory and not stat.S_ISDIR(about.st_mode):
        return f"{path} is not a directory"
    if not directory and not stat.S_ISREG(about.st_mode):
        return f"{path} is not an ordinary file"
    if about.st_uid != os.geteuid():
        return f"{path} belongs to user {about.st_uid}, expected {os.geteuid()}"
    if about.st_mode & _WRITABLE_BY_OTHERS:
        return f"{path} has mode {stat.S_IMODE(about.st_mode):04o}, others can write to it; expected 0700 or 0600"
    return ""


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if reason := _unsafe(path):
            raise ValueError(reason)
        return file.read()


def _sync(path: Path) -> None:
    """Make names in a directory durable, where the driver can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove an abandoned draft: its lock is gone, or free."""
    lock = Path(f"{path}.lock")
    try:
        descriptor = os.open(lock, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        if not take_lock(descriptor):
            return
    except OSError:
        if time.time() - os.fstat(descriptor).st_mtime < ABANDONED_S:
            return
    finally:
        os.close(descriptor)
    shutil.rmtree(path, ignore_errors=True)
    lock.unlink(missing_ok=True)
