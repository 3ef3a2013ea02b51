"""What is known of objects: whether they changed, and which of them only stand for directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile

from jupyter_hyperpod.core.errors import SpecError, StoreError
from jupyter_hyperpod.mounts import copying, remote
from jupyter_hyperpod.mounts.block_cache import BlockCache
from jupyter_hyperpod.mounts.remote import RemoteSource
from jupyter_hyperpod.mounts.table import Mounts

OLD, NEW = b"old" * 1000, b"new" * 1000


class Dated(SimpleHTTPRequestHandler):
    """Tells when a file was changed, and no ETag."""

    def log_message(self, form: str, *arguments: object) -> None:
        pass


class Silent(Dated):
    """Tells the size of a file and nothing else."""

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified":
            super().send_header(keyword, value)


@contextmanager
def serving(handler: type[Dated], directory: Path) -> Iterator[str]:
    """The address of a server without ETags."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=directory)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=[Dated, Silent])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where `tmp_path` is served."""
    with serving(request.param, tmp_path) as address:
        yield address


def test_a_file_made_anew_at_the_same_size_is_another_one(url: str, tmp_path: Path) -> None:
    held = BlockCache(tmp_path / "blocks", limit_bytes=1 << 20)
    path = tmp_path / "tokens"
    path.write_bytes(OLD)
    assert bytes(held.open(RemoteSource(f"{url}/tokens")).read(0, len(OLD))) == OLD
    path.write_bytes(NEW)
    os.utime(path, (2e9, 2e9))
    assert bytes(held.open(RemoteSource(f"{url}/tokens")).read(0, len(NEW))) == NEW


def test_a_file_that_changes_while_it_is_read_is_an_error(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(OLD)
    source = RemoteSource(f"{url}/tokens")
    about = path.stat()
    path.write_bytes(NEW + b"more")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(StoreError, match="was changed while it was read"):  # such servers send the whole of it
        source.read_into(0, memoryview(bytearray(len(NEW) + 4)))


def test_a_date_is_enough_to_notice_a_change(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(OLD)
    with serving(Dated, tmp_path) as url:
        source = RemoteSource(f"{url}/tokens")
        (tmp_path / "tokens").write_bytes(NEW)
        os.utime(tmp_path / "tokens", (2e9, 2e9))
        with pytest.raises(StoreError, match="was changed while it was read"):
            source.read_into(0, memoryview(bytearray(len(NEW))))


@pytest.mark.parametrize("name", ["ETag", "Content-MD5", "Digest", "LastModified", "Last-Modified", "mtime"])
def test_what_changes_with_an_object_is_known(name: str) -> None:
    assert remote.identity({"size": 1, name: '"one"'}) == "one"
    assert remote.identity({"size": 1}) == ""


def test_objects_that_stand_for_directories_are_no_files(tmp_path: Path) -> None:
    objects = fsspec.filesystem("memory")
    objects.store.clear()
    try:
        for path, content in {"/b/p/": b"", "/b/p/sub/": b"", "/b/p/sub/a": b"a", "/b/p/none/": b""}.items():
            objects.store[path] = MemoryFile(objects, path, content)
        listed = {path: remote.listing(f"memory://b/p{path}") for path in ("", "/sub", "/none")}
        assert {path: [one["name"] for one in found] for path, found in listed.items()} == {
            "": ["sub", "none"], "/sub": ["a"], "/none": [],
        }  # fmt: skip
        assert copying.copy("memory://b/p", str(tmp_path / "back"), Mounts(), recursive=True) == 1
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["back", "back/sub", "back/sub/a"]
        objects.store["/b/p/odd/"] = MemoryFile(objects, "/b/p/odd/", b"content")
        with pytest.raises(SpecError, match="is no path below it"):
            copying.copy("memory://b/p", str(tmp_path / "back"), Mounts(), recursive=True)
    finally:
        objects.store.clear()
