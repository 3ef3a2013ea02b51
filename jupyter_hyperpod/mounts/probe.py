"""Questions to a mount that always come to an end: they are asked by a process of their own, for a bounded time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from ..core.errors import HyperpodError, NotFound, StoreError
from ..core.spec import MountSpec
from ..core.units import format_duration
from ..storage.store import Store, private_directory
from . import drivers, table

TIMEOUT_S = 2.0
LIST_TIMEOUT_S = 10.0
CHECK_TIMEOUT_S = 60.0
START_S = 20.0
_AT_ONCE = 8
INSPECTION, FILING = (Path(__file__).with_name(f"{name}.py") for name in ("inspection", "file_operations"))
BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 65_536  # a mount that says more before its content is none that we asked
Kinds = Mapping[int, type[HyperpodError]]
_GONE = (errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.EHOSTDOWN)


class Hangs(StoreError):
    """A mount did not answer in time."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a mount is. ``state``: ready, detached (not mounted here), hangs, broken or remote (nothing to mount)."""

    state: str
    reason: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    writable: bool = False
    took_s: float = 0.0


def ask(
    store: Store,
    name: str,
    operation: str,
    path: str,
    *arguments: str,
    timeout_s: float,
    script: Path = INSPECTION,
    content: BinaryIO | int = subprocess.DEVNULL,
    kinds: Kinds = MappingProxyType({}),
    shown: str = "",
    lane: str = "probe",
) -> list[dict[str, Any]]:
    """Run an operation of `script` on `path` of mount `name`, with `content` as its input, and return its lines.

    Raises Hangs after `timeout_s`, StoreError with the system's words, NotFound where `path` is not there, or what
    `kinds` has for an error's number. While one question of a `lane` to a mount cannot be given up (its process is held
    by the kernel), no other is asked.
    """
    lock = _lock(store, f"{name}.{lane}", name, time.monotonic() + min(timeout_s, LIST_TIMEOUT_S))
    try:
        process = _start(script, operation, path, *arguments, content=content, pass_fds=(lock,))
    finally:
        os.close(lock)  # held by the child for as long as that is there
    try:
        started = _wait_readable(process, START_S)  # a busy machine is not a mount that hangs
        out, err = process.communicate(timeout=timeout_s if started else 0.0)
    except subprocess.TimeoutExpired:
        abandon(process)
        raise Hangs(_hangs(name, path, timeout_s)) from None
    except BaseException:
        abandon(process)
        raise
    try:
        lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()[1:]]
    except ValueError:
        lines = []
    if not lines:
        raise StoreError(f"mount {name!r} could not be asked: {err.decode(errors='replace').strip()[-500:]}")
    _raise_told(lines[-1], name, shown or path, kinds)
    return lines


class Content(Iterator[bytes]):
    """A file's bytes as a process of its own reads them, beside other questions: a long file holds up nobody.

    `about` is what that process says of the file that it has opened (`filing`); so many bytes come, or an error: Hangs
    where nothing comes for `timeout_s`, as `ask` else. To be closed.
    """

    def __init__(self, name: str, root: str, path: str, timeout_s: float, kinds: Kinds) -> None:
        self._name, self._path, self._timeout_s = name, path, timeout_s
        self._process = _start(FILING, "read", root, path)
        self._finalize = weakref.finalize(self, abandon, self._process)  # whoever reads it may be ended without a word
        try:
            head = self._take(START_S)
            while head.count(b"\n") < 2:
                more = self._take(timeout_s)
                if not more or len(head) > _HEAD_BYTES:
                    raise StoreError(f"mount {name!r} could not be asked for {path}")
                head += more
            _, told, self._block = head.split(b"\n", 2)
            self.about: dict[str, Any] = json.loads(told)
            _raise_told(self.about, name, path, kinds)
        except BaseException:
            self.close()
            raise
        self._left = int(self.about["bytes"])

    def __next__(self) -> bytes:
        if self._left <= 0:
            raise StopIteration
        block, self._block = self._block or self._take(self._timeout_s), b""
        if not block:
            found = f"{self._path} of mount {self._name!r}: {self._left} bytes are missing at its end"
            raise StoreError(f"{found}; expected all of them")
        self._left -= len(block)
        return block

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._finalize()

    def _take(self, timeout_s: float) -> bytes:
        if not _wait_readable(self._process, timeout_s):
            raise Hangs(_hangs(self._name, self._path, timeout_s))
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), BLOCK_BYTES)


def _start(
    script: Path, *arguments: str, content: BinaryIO | int = subprocess.DEVNULL, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", str(script), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, bufsize=0, stdin=content, stdout=pipe, stderr=pipe, cwd="/", pass_fds=pass_fds)


def _raise_told(told: Mapping[str, Any], name: str, path: str, kinds: Kinds) -> None:
    if "error" in told:
        kind = kinds.get(told["errno"], NotFound if told["errno"] == errno.ENOENT else StoreError)
        raise kind(f"{path} of mount {name!r}: {told['error']}{_advice(told['errno'])}")


def _wait_readable(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for what the child says next, its first word above all."""
    with selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


def _advice(code: int) -> str:
    return "; its server is gone: `jupyter hyperpod umount --force`, then attach it again" if code in _GONE else ""


def _hangs(name: str, path: str, timeout_s: float) -> str:
    return (
        f"mount {name!r} did not answer at {path} within {format_duration(timeout_s)}; look at its server, or let "
        f"go of it with `jupyter hyperpod umount {name} --force`"
    )


def _lock(store: Store, file: str, name: str, deadline: float) -> int:
    """At most one question a mount at a time, so that a mount that hangs holds one process and not ever more."""
    path = private_directory(store.root / "mounts") / file
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise Hangs(f"mount {name!r} has not answered an earlier question yet") from None
            time.sleep(0.01)


def abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and leave waiting to a thread: the kernel may hold it for as long as the mount hangs."""
    process.kill()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="hyperpod-probe", daemon=True).start()


def health(store: Store, spec: MountSpec, timeout_s: float = TIMEOUT_S) -> Health:
    """How the mount is on the notebook's side; never raises for what is wrong with it, and never hangs."""
    if spec.driver == "s3":
        return Health("remote", "read through the block cache")
    if drivers.DRIVERS[spec.driver].mounts and table.real(spec.notebook_path) not in table.mounted_at():
        return Health("detached", drivers.missing(drivers.DRIVERS[spec.driver]))
    began_s = time.monotonic()
    try:
        (found,) = ask(store, spec.name, "look", spec.notebook_path, timeout_s=timeout_s)
    except Hangs as error:
        return Health("hangs", str(error))
    except NotFound:
        return Health("broken", f"there is no directory {spec.notebook_path}")
    except StoreError as error:
        return Health("broken", str(error))
    return Health("ready", took_s=time.monotonic() - began_s, **found)


def survey(store: Store, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """Every mount of the table with its health, JSON-ready; all are asked at once: one that hangs delays no other."""
    with suppress(StoreError):  # what is wrong with the store's own area is told as that of a mount
        store.prepare()
    specs = list(table.table(store).values())
    with ThreadPoolExecutor(min(_AT_ONCE, len(specs))) as pool:
        found = list(pool.map(lambda spec: health(store, spec, timeout_s), specs))
    return [asdict(spec) | asdict(one) for spec, one in zip(specs, found, strict=True)]


def listing(store: Store, spec: MountSpec, path: str, timeout_s: float = LIST_TIMEOUT_S) -> dict[str, Any]:
    """``{"entries", "truncated", "directory"}`` of a path on the mount. Raises Hangs, NotFound, StoreError."""
    return ask(store, spec.name, "list", path, timeout_s=timeout_s)[0]


def usage(store: Store, spec: MountSpec, path: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """``{"used_bytes", "files", "whole"}`` below `path`. Raises Hangs, NotFound, StoreError."""
    return ask(store, spec.name, "usage", path, f"{timeout_s / 2:g}", timeout_s=timeout_s)[0]


def check(store: Store, spec: MountSpec, other: str = "", timeout_s: float = CHECK_TIMEOUT_S) -> list[dict[str, Any]]:
    """What the mount really gives, one record a check. Raises Hangs, StoreError."""
    arguments: Sequence[str] = [other] if other else []
    return ask(store, spec.name, "check", spec.notebook_path, *arguments, timeout_s=timeout_s)
