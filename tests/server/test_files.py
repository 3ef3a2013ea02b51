"""Files of mounts over REST, as JupyterLab's file browser asks for them: real directories, links, hostile names."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from tornado.httpclient import HTTPClientError

from jupyter_hyperpod.control import attach
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import files, table
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import Identity, session_members
from tests.server.conftest import ROOT, Api
from tests.storage import volumes

Fetched = tuple[int, Any]


def names(answer: Fetched) -> list[str]:
    status, model = answer
    assert status == 200, model
    return [one["name"] for one in model["content"]]


def text(path: str, content: str = "hello\n") -> tuple[str, str, dict[str, Any]]:
    return "PUT", f"/contents/{path}", {"type": "file", "format": "text", "content": content}


async def test_mounts_are_the_directories_at_the_top(
    api: Api, store: Store, openapi: dict[str, Any], tmp_path: Path
) -> None:
    table.add(store, MountSpec("data", str(tmp_path), "/fsx", read_only=True))
    table.add(store, MountSpec("nfs", str(tmp_path / "nfs"), "/nfs", driver="nfs", source="h:/e"))
    status, model = await api("GET", "/contents")
    schema = {"$ref": "#/components/schemas/Contents", "components": openapi["components"]}
    for one in (model, *model["content"]):
        Draft202012Validator(schema).validate(one)
    assert [(one["name"], one["type"], one["writable"]) for one in model["content"]] == [
        ("shared", "directory", True),
        ("data", "directory", False),
        ("nfs", "directory", True),
    ]
    assert [one["last_modified"] for one in model["content"]] == [""] * 3, "no time is known: 1970 is none"
    status, answer = await api("GET", "/contents/nfs")
    assert status == 409 and "mount attach nfs" in answer["message"]
    status, answer = await api("GET", "/contents/absent")
    assert status == 404 and "known mounts" in answer["message"]
    for method, path in (("DELETE", "/contents/data"), ("PUT", "/contents/data"), ("POST", "/contents")):
        status, answer = await api(method, path, {"type": "directory"} if method != "DELETE" else None)
        assert status == 403 and "jupyter hyperpod mount" in answer["message"]


NO_TRASH = pytest.mark.parametrize("server_config", [{"FileContentsManager": {"delete_to_trash": False}}])


@NO_TRASH
async def test_a_file_is_written_read_renamed_and_removed(api: Api, store: Store) -> None:
    for name in ("run 1", "checkpoints"):  # Jupyter's own URLs of checkpoints end so
        status, made = await api("PUT", f"/contents/shared/{name}", {"type": "directory"})
        assert (status, made["type"]) == (201, "directory")
    name = "ümlaut % #? .txt"
    assert (await api(*text(f"shared/run 1/{name}")))[0] == 201
    path = store.shared / "run 1" / name
    assert path.read_text() == "hello\n"
    path.chmod(0o640)
    assert (await api(*text(f"shared/run 1/{name}", "again")))[0] == 200
    assert path.read_text() == "again" and path.stat().st_mode & 0o777 == 0o640
    assert (await api(*text("shared/run 1/nul.txt", "a cell printed \0 ü")))[0] == 201
    assert (store.shared / "run 1" / "nul.txt").read_text() == "a cell printed \0 ü"
    (store.shared / "run 1" / "nul.txt").unlink()
    assert (await api(*text("shared/run 1/half.txt", "\ud800")))[0] == 400
    status, model = await api("GET", f"/contents/shared/run 1/{name}")
    assert (model["content"], model["format"], model["mimetype"]) == ("again", "text", "text/plain")
    status, later = await api("GET", f"/contents/shared/run 1/{name}", params={"content": "0", "hash": "1"})
    assert later["hash"] == model["hash"] and later["content"] is None
    status, moved = await api("PATCH", f"/contents/shared/run 1/{name}", {"path": "shared/checkpoints/b.txt"})
    assert (status, moved["path"]) == (200, "shared/checkpoints/b.txt")
    assert names(await api("GET", "/contents/shared/run 1")) == []
    assert names(await api("GET", "/contents/shared/checkpoints")) == ["b.txt"]
    assert (await api("DELETE", "/contents/shared/checkpoints"))[0] == 409
    assert (await api("DELETE", "/contents/shared/checkpoints/b.txt"))[0] == 204
    assert (await api("DELETE", "/contents/shared/checkpoints"))[0] == 204
    assert os.listdir(store.shared) == ["run 1"]
    assert list((store.root / "mounts" / "uploads").iterdir()) == []


async def test_what_is_deleted_is_in_the_trash(api: Api, store: Store) -> None:
    trash = store.shared / f".Trash-{os.getuid()}"
    (store.shared / "run ü").mkdir()
    (store.shared / "run ü" / "a").write_text("kept")
    assert (await api("DELETE", "/contents/shared/absent"))[0] == 404
    assert not trash.exists()
    for _ in range(2):
        (store.shared / "b").write_text("kept")
        assert (await api("DELETE", "/contents/shared/b"))[0] == 204
    assert (await api("DELETE", "/contents/shared/run ü"))[0] == 204
    assert names(await api("GET", "/contents/shared")) == []
    kept = sorted(one.name.rpartition(".")[0] for one in (trash / "files").iterdir())
    assert kept == ["b", "b", "run ü"] and trash.stat().st_mode & 0o777 == 0o700
    (about,) = (one.read_text() for one in (trash / "info").iterdir() if one.name.startswith("run"))
    assert about.startswith("[Trash Info]\nPath=run%20%C3%BC\nDeletionDate=20")
    (store.shared / "c").write_text("kept")
    trash.rename(store.root / "elsewhere")
    trash.symlink_to(store.root)
    status, answer = await api("DELETE", "/contents/shared/c")
    assert status == 403 and "no directory of yours" in answer["message"]
    assert (store.shared / "c").read_text() == "kept"


async def test_nothing_is_replaced_by_a_new_name(api: Api, store: Store) -> None:
    for name, content in (("a", "first"), ("b", "second")):
        (store.shared / name).write_text(content)
    status, answer = await api("PATCH", "/contents/shared/a", {"path": "shared/b"})
    assert status == 409 and "there already" in answer["message"]
    assert (store.shared / "b").read_text() == "second"
    status, answer = await api("PATCH", "/contents/shared/a", {"path": "other/b"})
    assert status == 400 and "hyperpod cp" in answer["message"]


async def test_new_names_copies_and_notebooks(api: Api, store: Store) -> None:
    for _ in range(2):
        assert (await api("POST", "/contents/shared", {"type": "notebook", "path": "shared"}))[0] == 201
    assert (await api("POST", "/contents/shared", {"copy_from": "shared/Untitled.ipynb"}))[0] == 201
    expected = ["Untitled-Copy1.ipynb", "Untitled.ipynb", "Untitled1.ipynb"]
    assert names(await api("GET", "/contents/shared")) == expected
    status, model = await api("GET", "/contents/shared/Untitled.ipynb")
    assert (model["type"], model["format"], model["content"]["cells"]) == ("notebook", "json", [])
    cell = {"cell_type": "code", "metadata": {}, "source": "1", "outputs": [], "execution_count": None, "id": "a"}
    model["content"]["cells"] = [cell]
    status, _ = await api("PUT", "/contents/shared/Untitled.ipynb", {"type": "notebook", "content": model["content"]})
    assert status == 200
    assert json.loads((store.shared / "Untitled.ipynb").read_text())["cells"][0]["source"] in ("1", ["1"])
    for content in (None, "text", {}, {"cells": 5}):
        status, answer = await api("PUT", "/contents/shared/new.ipynb", {"type": "notebook", "content": content})
        assert status == 400 and "no notebook" in answer["message"]
    assert not (store.shared / "new.ipynb").exists()
    (store.shared / "broken.ipynb").write_text("{")
    status, answer = await api("GET", "/contents/shared/broken.ipynb")
    assert status == 400 and "no notebook" in answer["message"]
    status, answer = await api("GET", "/contents/shared/broken.ipynb", params={"type": "file", "format": "text"})
    assert (status, answer["content"]) == (200, "{")


async def test_large_directories_come_in_pages(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAGE", 3)
    every = sorted(["  a", " b", "é.txt", "Z", "a b", ".hidden", *(f"shard-{number:05d}" for number in range(6))])
    for name in every:
        (store.shared / name).write_bytes(b"")
    (store.shared / "leads nowhere").symlink_to(store.shared / "absent")
    os.mkfifo(store.shared / "pipe")
    os.close(os.open(os.fsencode(store.shared) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        status, model = await api("GET", "/contents/shared", params={"after": after})
        found += [one["name"] for one in model["content"]]
        assert len(model["content"]) <= 3
        after = model["next"]
    assert found == [name for name in every if name != ".hidden"]


async def test_an_upload_is_seen_when_its_last_part_has_come(api: Api, store: Store) -> None:
    parts = [os.urandom(1000) for _ in range(3)]
    for number, part in zip((1, 2, -1), parts, strict=True):
        assert os.listdir(store.shared) == []
        body = {"type": "file", "format": "base64", "content": base64.b64encode(part).decode(), "chunk": number}
        assert (await api("PUT", "/contents/shared/model.bin", body))[0] == 201
    assert (store.shared / "model.bin").read_bytes() == b"".join(parts)
    for number in (2, -1):
        status, answer = await api("PUT", "/contents/shared/model.bin", body | {"chunk": number})
        assert status == 409 and "begin the upload again" in answer["message"]
    for number, expected in ((1, 201), (3, 409), (2, 201), (1, 409), (2, 409), (-1, 201)):
        assert (await api("PUT", "/contents/shared/other.bin", body | {"chunk": number}))[0] == expected, number
    assert (store.shared / "other.bin").read_bytes() == parts[-1] * 3
    assert list((store.root / "mounts" / "uploads").iterdir()) == []


async def test_nothing_is_lost_by_half_a_request(api: Api, store: Store) -> None:
    (store.shared / "a").write_text("first")
    (store.shared / "b").write_text("second")
    assert (await api("POST", "/contents/shared/b", {"copy_from": "shared/a"}))[0] == 400
    assert (await api("PUT", "/contents/shared/b", {"type": "file"}))[0] == 400
    assert (store.shared / "b").read_text() == "second"
    name = "日" * 80 + ".txt"
    assert (await api(*text(f"shared/{name}")))[0] == 201
    assert (await api("DELETE", f"/contents/shared/{name}"))[0] == 204


async def test_a_path_that_no_system_has_blocks_nobody(
    api: Api, store: Store, http_server_client: Any, jp_auth_header: Any, jp_base_url: str
) -> None:
    for path in ("a%00b", "x" * 5000, "a%FFb"):
        url = f"{jp_base_url}{ROOT}/contents/shared/{path}"
        with pytest.raises(HTTPClientError) as refused:
            await http_server_client.fetch(url, headers=dict(jp_auth_header))
        assert refused.value.code in (400, 404), path
    (store.shared / "a").write_text("a")
    for to in ("shared/" + "x" * 5000, "shared/\ud800", "shared/a\0b"):
        assert (await api("PATCH", "/contents/shared/a", {"path": to}))[0] == 400
    assert names(await api("GET", "/contents/shared")) == ["a"]


async def test_a_file_that_grows_is_downloaded_as_it_was_when_it_was_opened(
    api: Api, store: Store, jp_fetch: Any
) -> None:
    over, path = threading.Event(), store.shared / "train.log"
    path.write_bytes(b"begun\n" * 100_000)

    def train() -> None:
        with open(path, "ab", buffering=0) as log:
            while not over.wait(0.001):
                log.write(b"step\n" * 100)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(5):
            found = await jp_fetch(*f"{ROOT}/files/shared/train.log".split("/"))
            assert len(found.body) == int(found.headers["Content-Length"]) >= 600_000
    finally:
        over.set()
        trainer.join()
    (store.shared / "empty.bin").touch()
    found = await jp_fetch(*f"{ROOT}/files/shared/empty.bin".split("/"))
    assert (found.body, found.headers["Content-Type"]) == (b"", "application/octet-stream")


@NO_TRASH
async def test_links_that_lead_out_and_paths_that_are_none(api: Api, store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (store.shared / "out").symlink_to(outside)
    (store.shared / "file").symlink_to(outside / "secret")
    (store.shared / "inside").mkdir()
    (store.shared / "inside" / "kept").write_text("kept")
    (store.shared / "in").symlink_to("inside")
    assert names(await api("GET", "/contents/shared")) == ["in", "inside"]
    assert names(await api("GET", "/contents/shared/in")) == ["kept"]
    for path in ("out/secret", "file", "out"):
        status, answer = await api("GET", f"/contents/shared/{path}")
        assert status == 400 and "leads out of the mount" in answer["message"], answer
        assert (await api("GET", f"/files/shared/{path}"))[0] == 400
    assert (await api(*text("shared/out/new")))[0] == 400
    assert (await api(*text("shared/file")))[0] == 400
    assert (await api("DELETE", "/contents/shared/out/secret"))[0] == 400
    for path in ("shared/../../etc/passwd", "../x", "shared//x", "shared/a\0b", "shared/./x"):
        status, _ = await api("GET", f"/contents/{quote(path, safe='/')}")
        assert status in (400, 404), path
    assert (await api("DELETE", "/contents/shared/file"))[0] == 204  # the link, not what it leads to
    assert [one.name for one in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


async def test_hidden_files_stay_hidden(api: Api, store: Store) -> None:
    (store.shared / ".key").write_text("secret")
    for method, path, body in (
        ("GET", "/contents/shared/.key", None),
        ("GET", "/files/shared/.key", None),
        ("DELETE", "/contents/shared/.key", None),
        ("PATCH", "/contents/shared/.key", {"path": "shared/key"}),
        text("shared/.ssh/config"),
    ):
        assert (await api(method, path, body))[0] == 400
    assert (store.shared / ".key").read_text() == "secret"


async def test_a_read_only_mount_is_read_only(api: Api, store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    table.add(store, MountSpec("data", str(tmp_path), "/fsx", read_only=True))
    status, model = await api("GET", "/contents/data/a")
    assert (model["content"], model["writable"]) == ("a", False)
    for method, path, body in (
        text("data/a", "b"),
        ("DELETE", "/contents/data/a", None),
        ("PATCH", "/contents/data/a", {"path": "data/b"}),
        ("POST", "/contents/data", {"type": "directory"}),
    ):
        status, answer = await api(method, path, body)
        assert status == 403 and "read-only" in answer["message"], answer
    assert (tmp_path / "a").read_text() == "a" and not (tmp_path / "b").exists()


@pytest.mark.parametrize("extension_config", [{"max_file_bytes": 2000}])
async def test_large_files_are_downloaded_not_opened(api: Api, store: Store, jp_fetch: Any) -> None:
    content = os.urandom(3 * 2**20)
    (store.shared / "big.bin").write_bytes(content)
    status, answer = await api("GET", "/contents/shared/big.bin")
    assert status == 400 and "download it" in answer["message"]
    assert (await api("GET", "/contents/shared/big.bin", params={"content": "0"}))[1]["size"] == len(content)
    found = await jp_fetch(*f"{ROOT}/files/shared/big.bin".split("/"), params={"download": "1"})
    assert found.body == content
    assert found.headers["Content-Disposition"].startswith("attachment")
    assert "sandbox" in found.headers["Content-Security-Policy"]
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    status, answer = await api(*text("shared/x", "x" * 100_000))
    assert status == 413
    (store.shared / "page.html").write_text("<script>1</script>")
    found = await jp_fetch(*f"{ROOT}/files/shared/page.html".split("/"))
    assert found.headers["Content-Type"] == "text/html" and "sandbox" in found.headers["Content-Security-Policy"]


@pytest.mark.parametrize("leaves", ["client", "server"])
async def test_who_leaves_in_the_middle_leaves_no_process(
    leaves: str,
    api: Api,
    extension: HyperpodExtension,
    store: Store,
    jp_auth_header: Any,
    jp_http_port: int,
    jp_base_url: str,
) -> None:
    (store.shared / "huge.bin").touch()
    os.truncate(store.shared / "huge.bin", 2**30)
    reader, writer = await asyncio.open_connection("127.0.0.1", jp_http_port)
    head = f"GET {jp_base_url}{ROOT}/files/shared/huge.bin HTTP/1.1\r\nHost: 127.0.0.1:{jp_http_port}\r\n"
    writer.write(f"{head}Authorization: {jp_auth_header['Authorization']}\r\n\r\n".encode())
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 50)
    await asyncio.wait_for(reader.readexactly(2**20), 50)
    assert readers(store)
    if leaves == "server":
        await extension.stop_extension()
    writer.close()
    async with asyncio.timeout(30):
        while readers(store):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    gc.collect()  # a process that nobody has waited for would be told here


def readers(store: Store) -> list[str]:
    """The processes that read files of the shared area."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if b"file_operations.py" in line and os.fsencode(store.shared) in line:
            found.append(line.decode(errors="replace"))
    return found


@pytest.mark.fuse
async def test_a_mount_that_hangs_is_told_and_the_others_go_on(
    api: Api, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ASK_TIMEOUT_S", 3.0)
    spec = volumes.rclone(tmp_path)
    table.add(store, spec)
    try:
        attach.attach(store, spec)
        assert (await api(*text(f"{spec.name}/a.txt")))[0] == 201
        assert names(await api("GET", f"/contents/{spec.name}")) == ["a.txt"]
        record = attach.state(store, spec.name)
        assert record is not None
        for pid in session_members(Identity(record["pid"], record["start"])):
            os.kill(pid, signal.SIGSTOP)
        asked = [asyncio.create_task(api("GET", f"/contents/{spec.name}")) for _ in range(10)]
        await asyncio.sleep(0)
        assert (await api(*text("shared/b.txt")))[0] == 201
        assert names(await api("GET", "/contents/shared")) == ["b.txt"]
        assert not all(task.done() for task in asked)
        for status, answer in await asyncio.gather(*asked):
            assert status == 504 and "answer" in answer["message"] and "hint" not in answer
    finally:
        attach.detach(store, spec, force=True)
