"""Asks a mount questions with a time limit: a separate process asks, so that a mount that hangs blocks nothing else."""

from __future__ import annotations

import errno
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

from ..core.errors import Hangs, HyperpodError, NotFound, StoreError
from ..core.mount_spec import MountSpec
from ..core.units import format_duration
from ..storage.store import Store, private_directory
from ..system.locks import open_lock, take_lock
from . import drivers, table

TIMEOUT_S = 2.0
LIST_TIMEOUT_S = 10.0
CHECK_TIMEOUT_S = 60.0
START_S = 20.0
_AT_ONCE = 8
INSPECTION, FILING = (Path(__file__).with_name(f"{name}.py") for name in ("inspection", "file_operations"))
BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 65_536  # more output than this before the content cannot come from our script
Kinds = Mapping[int, type[HyperpodError]]
_GONE = (errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True)
class Health:
    """A mount's health. ``state``: ready, detached (not mounted here), hangs, broken or remote (nothing to mount)."""

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

    Raises Hangs after `timeout_s`, StoreError with the system's message, NotFound where `path` does not exist, or the
    error of `kinds` for an errno. While the kernel still holds the process of an earlier question of the same `lane`,
    no new question is asked.
    """
    lock = _lock(store, f"{name}.{lane}", name, time.monotonic() + min(timeout_s, LIST_TIMEOUT_S))
    try:
        process = _start(script, operation, path, *arguments, content=content, pass_fds=(lock,))
    finally:
        os.close(lock)  # the child holds the lock while it exists
    try:
        started = _wait_readable(process, START_S)  # a busy machine must not look like a mount that hangs
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


class ProbedContent(Iterator[bytes]):
    """The bytes of a file, read by a separate process beside other questions, so that a long file delays nothing else.

    `about` is that process's record of the opened file (`file_operations`). The content has exactly its size, or an
    error is raised: Hangs where nothing comes for `timeout_s`, else as in `ask`. Close it after use.
    """

    def __init__(self, name: str, root: str, path: str, timeout_s: float, kinds: Kinds) -> None:
        self._name, self._path, self._timeout_s = name, path, timeout_s
        self._process = _start(FILING, "read", root, path)
        self._finalize = weakref.finalize(self, abandon, self._process)  # its reader may end without closing it
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
    """Wait for the child's next output, above all its first line."""
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
    """Allow one question per mount at a time, so that a mount that hangs blocks one process, not more and more."""
    descriptor = open_lock(private_directory(store.root / "mounts") / file)
    if not take_lock(descriptor, deadline - time.monotonic()):
        os.close(descriptor)
        raise Hangs(f"mount {name!r} has not answered an earlier question yet")
    return descriptor


def abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill the process; a thread waits for its end, because the kernel may hold it while the mount hangs."""
    process.kill()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="hyperpod-probe", daemon=True).start()


def health(store: Store, spec: MountSpec, timeout_s: float = TIMEOUT_S) -> Health:
    """The health of the mount on the notebook's side. Never raises for a problem of the mount, and never hangs."""
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


def survey(store: Store) -> list[dict[str, Any]]:
    """Every mount of the table with its health, JSON-ready; all are asked at once, so that none delays another."""
    with suppress(StoreError):  # a problem of the store's own area is reported as that of its mount
        store.prepare()
    specs = list(table.table(store).values())
    with ThreadPoolExecutor(min(_AT_ONCE, len(specs))) as pool:
        found = list(pool.map(lambda spec: health(store, spec), specs))
    return [asdict(spec) | asdict(one) for spec, one in zip(specs, found, strict=True)]


def listing(store: Store, spec: MountSpec, path: str) -> dict[str, Any]:
    """``{"entries", "truncated", "directory"}`` of a path on the mount. Raises Hangs, NotFound, StoreError."""
    return ask(store, spec.name, "list", path, timeout_s=LIST_TIMEOUT_S)[0]


def usage(store: Store, spec: MountSpec, path: str) -> dict[str, Any]:
    """``{"used_bytes", "files", "whole"}`` below `path`. Raises Hangs, NotFound, StoreError."""
    return ask(store, spec.name, "usage", path, f"{TIMEOUT_S / 2:g}", timeout_s=TIMEOUT_S)[0]


def check(store: Store, spec: MountSpec, other: str = "") -> list[dict[str, Any]]:
    """How the mount really behaves, one record per check. Raises Hangs, StoreError."""
    arguments = [other] if other else []
    return ask(store, spec.name, "check", spec.notebook_path, *arguments, timeout_s=CHECK_TIMEOUT_S)
