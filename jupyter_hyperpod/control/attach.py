"""Mounts and unmounts shared storage: runs the drivers' programs and leaves none of them behind.

<store>/mounts/<name>.json   the server process of a mount: pid, start, arguments; no secrets
<store>/mounts/<name>.log    its output
<store>/mounts/<name>.cache  its caches
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import ClusterError, Conflict, SpecError
from ..core.mount_spec import MountSpec
from ..mounts import credentials, drivers, probe, table
from ..storage.store import Store, private_directory, write_private
from ..system import portable
from ..system.locks import one_at_a_time
from ..system.processes import Identity, alive, identify, session_members, signal_group
from .cluster import daemon_environment, last_lines

ATTACH_TIMEOUT_S = 30.0
DETACH_TIMEOUT_S = 15.0
COMMAND_TIMEOUT_S = 10.0
FORCED_S = 0.5
_POLL_S = 0.02
_LOG_LINES = 8
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def place(store: Store, spec: MountSpec) -> drivers.MountPaths:
    """The local paths of the mount."""
    directory = store.root / "mounts"
    digest = hashlib.sha256(str(directory / spec.name).encode()).hexdigest()[:12]
    socket = os.path.join(tempfile.gettempdir(), f"hyperpod-{digest}.sock")  # a socket's path must be short
    return drivers.MountPaths(table.real(spec.notebook_path), str(directory / f"{spec.name}.cache"), socket)


def attach(store: Store, spec: MountSpec, timeout_s: float = ATTACH_TIMEOUT_S) -> str:
    """Mount `spec` at its path in the notebook, and return a sentence about it.

    Raises ClusterError where this machine cannot mount it, or not in time; then nothing of it remains.
    """
    driver = drivers.check(spec)
    if not driver.mounts:
        if spec.driver == "directory":
            table.make_root(spec, spec.notebook_path)
            return f"{spec.name} is a directory: {spec.notebook_path}"
        return f"{spec.name} needs no mount: it is read through the block cache"
    with _one_at_a_time(store, spec.name):
        if table.real(spec.notebook_path) in table.mounted_at():
            return f"{spec.name} is mounted at {spec.notebook_path} already"
        if problem := drivers.missing(driver):
            raise ClusterError(f"mount {spec.name!r} cannot be attached: {problem}")
        _end_server(store, spec.name)
        _prepare(store, spec)
        commands = drivers.commands(spec, place(store, spec))
        secrets = credentials.of(spec, os.environ)
        if not commands.serves:
            _run(_found(commands.mount), timeout_s, secrets)
        else:
            _serve(store, spec, commands, secrets, timeout_s)
        return f"{spec.name} is mounted at {spec.notebook_path}"


def detach(store: Store, spec: MountSpec, force: bool = False) -> str:
    """Unmount, and wait until the server has ended. Raises Conflict where its files are in use, unless `force`."""
    if not drivers.DRIVERS[spec.driver].mounts:
        return f"{spec.name} has nothing to unmount"
    with _one_at_a_time(store, spec.name):
        here = place(store, spec)
        commands = drivers.commands(spec, here)
        server = _server(store, spec.name)
        mounted = here.path in table.mounted_at()
        if mounted and server is None and commands.serves and not force:
            raise Conflict(f"{spec.name} was not mounted by this cluster; unmount it where it was, or use --force")
        if mounted:
            _unmount(spec, commands, here, server, force)
        _end_server(store, spec.name, FORCED_S if force else DETACH_TIMEOUT_S)
        with suppress(OSError):
            os.unlink(here.socket)
        with suppress(OSError):
            os.rmdir(here.path)  # succeeds only if it is empty
        return f"{spec.name} is unmounted" if mounted else f"{spec.name} was not mounted"


def state(store: Store, name: str) -> dict[str, Any] | None:
    """The record of the mount's server process; None without one."""
    try:
        record: dict[str, Any] = json.loads((store.root / "mounts" / f"{name}.json").read_text())
        return record
    except (OSError, ValueError):
        return None


def _prepare(store: Store, spec: MountSpec) -> None:
    path = Path(spec.notebook_path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        occupied = any(path.iterdir())
    except OSError as error:
        raise ClusterError(f"mount {spec.name!r}: cannot use {path} as mount point: {error.strerror}") from error
    if occupied:
        raise Conflict(f"mount {spec.name!r}: {path} is not empty; mounting there would hide what is in it")
    if path.stat().st_uid != portable.user_id():
        owner, mine = path.stat().st_uid, portable.user_id()
        raise Conflict(f"mount {spec.name!r}: {path} belongs to user {owner}, expected {mine}")
    private_directory(store.root / "mounts" / f"{spec.name}.cache")


def _serve(
    store: Store, spec: MountSpec, commands: drivers.Commands, secrets: dict[str, str], timeout_s: float
) -> None:
    log = store.root / "mounts" / f"{spec.name}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | portable.NOT_INHERITED, 0o600)
    kept = daemon_environment(os.environ)
    for name in {secret for driver in drivers.DRIVERS.values() for secret in driver.secrets}:
        kept.pop(name, None)
    try:
        process = subprocess.Popen(
            _found(commands.mount), stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, cwd="/",
            env=kept | {"PATH": _PATH} | secrets, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(descriptor)
    server = identify(process.pid)
    record = asdict(server) | {"arguments": list(commands.mount)}
    write_private(store.root / "mounts" / f"{spec.name}.json", json.dumps(record).encode())
    threading.Thread(target=process.wait, name="hyperpod-reaper", daemon=True).start()
    deadline = time.monotonic() + timeout_s
    path = table.real(spec.notebook_path)
    while path not in table.mounted_at():
        if not alive(server) or time.monotonic() > deadline:
            gone = not alive(server)
            _undo(store, spec, commands)
            why = "its server ended" if gone else f"it did not come up within {timeout_s:g} s"
            raise ClusterError(f"mount {spec.name!r} failed: {why}; {_tail(log)}")
        time.sleep(_POLL_S)
    health = probe.health(store, spec, timeout_s=max(1.0, deadline - time.monotonic()))
    if health.state != "ready":
        _undo(store, spec, commands)
        raise ClusterError(f"mount {spec.name!r} failed: {health.reason}; {_tail(log)}")


def _undo(store: Store, spec: MountSpec, commands: drivers.Commands) -> None:
    _end_server(store, spec.name)
    if table.real(spec.notebook_path) in table.mounted_at():
        with suppress(ClusterError):
            _run(_found(commands.force), COMMAND_TIMEOUT_S, {})
    with suppress(OSError):
        os.rmdir(spec.notebook_path)


def _unmount(
    spec: MountSpec, commands: drivers.Commands, here: drivers.MountPaths, server: Identity | None, force: bool
) -> None:
    try:
        _run(_found(commands.unmount), COMMAND_TIMEOUT_S, {})
    except ClusterError as error:
        if not force:
            raise Conflict(
                f"{spec.name} cannot be unmounted: {error}; close what uses it, or give it up with --force"
            ) from error
        if server is not None:
            _end(server, 0.0)
        if here.path in table.mounted_at():
            _run(_found(commands.force), COMMAND_TIMEOUT_S, {})
    if here.path in table.mounted_at():
        raise ClusterError(f"{spec.name} is still mounted at {here.path}")


def _end_server(store: Store, name: str, patience_s: float = 0.0) -> None:
    server = _server(store, name)
    if server is not None:
        _end(server, patience_s)
    with suppress(OSError):
        os.unlink(store.root / "mounts" / f"{name}.json")


def _server(store: Store, name: str) -> Identity | None:
    record = state(store, name)
    if record is None:
        return None
    found = Identity(int(record["pid"]), int(record["start"]))
    return found if alive(found) or session_members(found) else None


def _end(server: Identity, patience_s: float) -> None:
    """Wait until the server and its session end by themselves, then terminate them, then kill them."""
    for number, wait_s in ((0, patience_s), (signal.SIGTERM, patience_s / 3), (signal.SIGKILL, 5.0)):
        if number:
            signal_group(server, number)
        deadline = time.monotonic() + wait_s
        while (left := session_members(server)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not left:
            return
    raise ClusterError(f"the mount's server (process {server.pid}) cannot be ended; the kernel may hold it")


def _one_at_a_time(store: Store, name: str) -> AbstractContextManager[int]:
    path = private_directory(store.root / "mounts") / f"{name}.lock"
    return one_at_a_time(path, f"mount {name!r} is being attached or detached by another process", ATTACH_TIMEOUT_S)


def _run(argv: Sequence[str], timeout_s: float, secrets: dict[str, str]) -> None:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
        env={"PATH": _PATH, "LANG": "C"} | secrets,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        probe.abandon(process)
        raise ClusterError(f"{argv[0]} did not end within {timeout_s:g} s") from None
    if process.returncode:
        text = out.decode(errors="replace").strip().splitlines()[-_LOG_LINES:]
        raise ClusterError(f"{os.path.basename(argv[0])} failed: {' | '.join(text) or f'status {process.returncode}'}")


def _found(argv: Sequence[str]) -> list[str]:
    path = drivers.program(argv[0])
    if path is None:
        raise ClusterError(f"{argv[0]} is not installed")
    return [path, *argv[1:]]


def _tail(log: Path) -> str:
    return f"the last lines of {log}: {' | '.join(last_lines(log, _LOG_LINES))}"


def remove(store: Store, name: str) -> str:
    """Unmount, and remove the mount from the table; its files stay. Raises NotFound, Conflict."""
    spec = table.get(store, name)
    if spec == table.default_mount(store):
        raise SpecError("the default mount cannot be removed")
    detach(store, spec)
    table.remove(store, name)
    for end in ("cache", "log", "lock", "probe"):
        path = store.root / "mounts" / f"{name}.{end}"
        shutil.rmtree(path, ignore_errors=True) if end == "cache" else path.unlink(missing_ok=True)
    return f"{name} was removed; its files stay where they are"
