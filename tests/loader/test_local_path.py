"""Files of mounts and object stores as paths of this node: fetched once, and one version for all members of a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import NotFound, SpecError, StoreError
from jupyter_hyperpod.loader import hub, local_path
from jupyter_hyperpod.mounts import block_cache
from jupyter_hyperpod.storage.store import Store

URL = "memory://bucket/rows.bin"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "blocks"))
    monkeypatch.delenv(hub.JOB_VARIABLE, raising=False)
    yield tmp_path / "blocks"
    fsspec.filesystem("memory").store.clear()


def put(content: bytes) -> None:
    fsspec.filesystem("memory").pipe_file("bucket/rows.bin", content)


def test_an_object_is_fetched_once(blocks: Path) -> None:
    put(b"first")
    path = Path(hp.local_path(URL))
    assert path.read_bytes() == b"first" and path.name == "rows.bin" and path.is_relative_to(blocks)
    about = path.stat()
    assert hp.local_path(URL) == str(path) and path.stat().st_ino == about.st_ino
    put(b"second")
    assert Path(hp.local_path(URL)).read_bytes() == b"second" and path.read_bytes() == b"first"
    with pytest.raises(SpecError, match="memory://bucket is a folder; expected one file"):
        hp.local_path("memory://bucket")
    with pytest.raises(NotFound, match="no such object"):
        hp.local_path("memory://bucket/missing")


def test_members_of_a_job_read_one_version(blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.JOB_VARIABLE, str(tmp_path / "job"))
    put(b"first")
    path = hp.local_path(URL)
    put(b"changed")
    assert hp.local_path(URL) == path and Path(path).read_bytes() == b"first"
    shutil.rmtree(blocks)  # another node
    with pytest.raises(StoreError, match="has changed since the job began to read it"):
        hp.local_path(URL)


def test_what_nobody_has_opened_for_long_is_removed(blocks: Path) -> None:
    put(b"first")
    old = hp.local_path(URL)
    for part in Path(old).parent.iterdir():
        os.utime(part, (1e9, 1e9))
    put(b"second")
    new = hp.local_path(URL)
    assert not Path(old).exists() and Path(new).read_bytes() == b"second"
    assert local_path.KEPT_S > 86400


def test_a_file_of_a_mount_is_its_path(store: Store, tmp_path: Path) -> None:
    file = Path(store.root) / "shared" / "rows.bin"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"here")
    assert Path(hp.local_path("shared://rows.bin")).samefile(file)
    assert hp.local_path(str(file)) == str(file)
    with pytest.raises(NotFound, match="there is no file"):
        hp.local_path("shared://missing")
