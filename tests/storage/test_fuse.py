"""Real FUSE mounts: brought up, used, hung, killed and taken down, with nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import attach
from jupyter_hyperpod.core.errors import ClusterError, Conflict
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import probe, table
from jupyter_hyperpod.mounts.table import known_mounts, resolve_url
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import Identity, session_members
from tests.storage import volumes

pytestmark = pytest.mark.fuse
Eventually = Callable[..., Any]


@pytest.fixture(params=["juicefs", "rclone"])
def spec(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Iterator[MountSpec]:
    """A mount that is in the table and not attached yet."""
    spec = {"juicefs": volumes.juicefs, "rclone": volumes.rclone}[request.param](tmp_path)
    table.add(store, spec)
    yield spec
    attach.detach(store, spec, force=True)
    assert table.real(spec.notebook_path) not in table.mounted_at()


def server(store: Store, spec: MountSpec) -> list[int]:
    record = attach.state(store, spec.name)
    return session_members(Identity(record["pid"], record["start"])) if record else []


def test_up_and_down(store: Store, spec: MountSpec, tmp_path: Path) -> None:
    assert probe.health(store, spec).state == "detached"
    assert "is mounted at" in attach.attach(store, spec)
    assert attach.attach(store, spec).endswith("already")
    (tmp_path / "in").write_bytes(b"content")
    path = Path(resolve_url(f"shared://{spec.name}/a/b", known_mounts()))
    path.parent.mkdir()
    path.write_bytes(b"content")
    assert probe.health(store, spec).free_bytes
    with open(path, "rb"), pytest.raises(Conflict, match="--force"):
        attach.detach(store, spec)
    assert path.read_bytes() == b"content"
    processes = server(store, spec)
    assert processes
    assert attach.detach(store, spec) == f"{spec.name} is unmounted"
    assert not any(Path(f"/proc/{pid}").exists() and pid in server(store, spec) for pid in processes)
    assert not Path(spec.notebook_path).exists()
    attach.attach(store, spec)
    assert path.read_bytes() == b"content"


def test_a_mount_that_hangs_holds_nobody(store: Store, spec: MountSpec, eventually: Eventually) -> None:
    attach.attach(store, spec)
    stopped = server(store, spec)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    found = {one["name"]: one["state"] for one in probe.survey(store)}
    assert found == {"shared": "ready", spec.name: "hangs"}
    assert time.monotonic() - began_s < 30
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: probe.health(store, spec).state == "ready")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    threads = threading.active_count()
    for _ in range(3):
        assert probe.health(store, spec, timeout_s=0.2).state == "hangs"
    eventually(lambda: threading.active_count() <= threads + 1)
    assert attach.detach(store, spec, force=True) == f"{spec.name} is unmounted"
    eventually(lambda: not session_members(Identity(stopped[0], 0)))


def test_a_server_that_died_is_told_and_replaced(store: Store, spec: MountSpec, eventually: Eventually) -> None:
    attach.attach(store, spec)
    Path(spec.notebook_path, "kept").write_bytes(b"kept")
    os.sync()
    for pid in server(store, spec):
        os.kill(pid, signal.SIGKILL)
    found = eventually(lambda: probe.health(store, spec))
    eventually(lambda: probe.health(store, spec).state in ("broken", "detached"))
    assert found is not None
    attach.detach(store, spec, force=True)
    attach.attach(store, spec)
    assert probe.health(store, spec).state == "ready"


def test_what_does_not_come_up_leaves_nothing(store: Store, tmp_path: Path) -> None:
    volumes.need("juicefs")
    spec = MountSpec("no", str(tmp_path / "no"), "/no", driver="juicefs", source=f"sqlite3://{tmp_path}/nothing.db")
    with pytest.raises(ClusterError, match=r"'no' failed: its server ended; the last lines of .*no.log"):
        attach.attach(store, spec)
    assert server(store, spec) == []
    assert not (tmp_path / "no").exists()


def test_what_is_there_is_never_hidden(store: Store, tmp_path: Path) -> None:
    volumes.need("rclone")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    spec = MountSpec("f", str(tmp_path / "full"), "/f", driver="rclone", source=":local:/tmp")
    with pytest.raises(Conflict, match="is not empty"):
        attach.attach(store, spec)


def test_what_juicefs_gives(store: Store, tmp_path: Path) -> None:
    """Two mounts of one volume: what one promises, the other keeps."""
    one, two = volumes.juicefs(tmp_path), volumes.juicefs(tmp_path, "two", "two")
    table.add(store, one)
    table.add(store, two)
    try:
        attach.attach(store, one)
        attach.attach(store, two)
        found = {line["check"]: line for line in probe.check(store, one, two.notebook_path)}
        assert [name for name, line in found.items() if line["result"] != "pass"] == []
        assert "across two mounts" in found["flock across processes"]["detail"]
    finally:
        for spec in (one, two):
            attach.detach(store, spec, force=True)


def test_what_rclone_does_not_give_is_told(store: Store, tmp_path: Path) -> None:
    spec = volumes.rclone(tmp_path)
    table.add(store, spec)
    try:
        attach.attach(store, spec)
        found = {line["check"]: line["result"] for line in probe.check(store, spec)}
        assert found["hard links"] == "fail"
        assert found["shared mmap"] == "pass"
    finally:
        attach.detach(store, spec, force=True)


def test_no_secret_is_written_down(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = volumes.rclone(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("AWS_SECRET_ACCESS_KEY=hunter2-in-file\n")
    keys.chmod(0o600)
    spec = MountSpec("sec", spec.notebook_path, "/s", driver="rclone", source=spec.source, credentials=str(keys))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2-in-environment")
    monkeypatch.setenv("META_PASSWORD", "hunter2-of-another-driver")
    table.add(store, spec)
    try:
        attach.attach(store, spec)
        (pid,) = server(store, spec)
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"hunter2-in-file" in environment and b"hunter2-in-environment" in environment
        assert b"hunter2-of-another-driver" not in environment
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        written = [path.read_bytes() for path in store.root.rglob("*") if path.is_file()]
        assert not any(b"hunter2" in content for content in written)
    finally:
        attach.detach(store, spec, force=True)
