"""Mounts are asked by processes of their own; what they answer, and that a directory gives what it should."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import NotFound
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import probe, table
from jupyter_hyperpod.storage.store import Store


@pytest.fixture
def spec(store: Store, tmp_path: Path) -> MountSpec:
    path = str(tmp_path / "d")
    spec = MountSpec("d", path, path)
    table.add(store, spec)
    table.make_root(spec, path)
    return spec


def test_health_of_what_is_there_and_what_is_not(store: Store, spec: MountSpec) -> None:
    found = probe.health(store, spec)
    about = os.statvfs(spec.notebook_path)
    assert (found.state, found.total_bytes, found.writable) == ("ready", about.f_frsize * about.f_blocks, True)
    os.rmdir(spec.notebook_path)
    assert probe.health(store, spec).state == "broken"
    assert "there is no directory" in probe.health(store, spec).reason


def test_listing_and_usage(store: Store, spec: MountSpec) -> None:
    root = Path(spec.notebook_path)
    (root / "a").write_bytes(b"12345")
    (root / "b\udcff").write_bytes(b"")
    (root / "sub").mkdir()
    (root / "sub" / "c").symlink_to(root / "a")
    found = probe.listing(store, spec, str(root))
    assert [(one["name"], one["kind"], one["bytes"]) for one in found["entries"]][:2] == [
        ("a", "file", 5),
        ("b\udcff", "file", 0),
    ]
    assert probe.listing(store, spec, str(root / "a"))["directory"] is False
    assert probe.usage(store, spec, str(root))["files"] == 3
    with pytest.raises(NotFound, match="No such file"):
        probe.listing(store, spec, str(root / "missing"))


def test_a_directory_gives_everything(store: Store, spec: MountSpec) -> None:
    found = probe.check(store, spec)
    assert {one["check"]: one["result"] for one in found if one["result"] != "pass"} == {}
    assert len(found) == 12
    assert os.listdir(spec.notebook_path) == []


def test_one_question_a_mount_at_a_time(store: Store, spec: MountSpec) -> None:
    """Whoever holds a question keeps others waiting for a bounded time, and for this mount only."""
    path = store.root / "mounts" / "d.probe"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        began_s = time.monotonic()
        found = {one["name"]: one for one in probe.survey(store)}
        assert time.monotonic() - began_s < 30
        assert found["shared"]["state"] == "ready"
        assert (found["d"]["state"], "has not answered an earlier question" in found["d"]["reason"]) == ("hangs", True)
        holder.kill()
    assert probe.health(store, spec).state == "ready"
