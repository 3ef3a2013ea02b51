"""Models as paths of this node: a path stays, a folder of a store or a web server is fetched once and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from jupyter_hyperpod.core.errors import LoaderError, NotFound, StoreError
from jupyter_hyperpod.loader import hub, local_model
from jupyter_hyperpod.mounts import block_cache
from tests.loader.ranges import serving

URL = "memory://bucket/model"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "blocks"))
    monkeypatch.delenv(hub.JOB_VARIABLE, raising=False)
    monkeypatch.setattr(local_model, "CHUNK_BYTES", 1000)
    yield tmp_path / "blocks"
    fsspec.filesystem("memory").store.clear()


def put(**files: bytes) -> None:
    for name, content in files.items():
        fsspec.filesystem("memory").pipe_file(f"bucket/model/{name.replace('__', '/').replace('_', '.')}", content)


def test_a_path_stays_and_a_missing_one_is_named(blocks: Path, tmp_path: Path) -> None:
    assert local_model.local_model(str(tmp_path)) == str(tmp_path)
    with pytest.raises(NotFound, match="there is no file or folder"):
        local_model.local_model(str(tmp_path / "missing"))


def test_a_folder_is_fetched_once_with_progress(blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, told = bytes(range(256)) * 20, []
    put(config_json=b"{}", model_safetensors=weights, more__empty_txt=b"")
    found = Path(local_model.local_model(URL, lambda done, whole: told.append((done, whole))))
    assert found.is_relative_to(blocks) and (found / "model.safetensors").read_bytes() == weights
    assert (found / "config.json").read_bytes() == b"{}" and (found / "more" / "empty.txt").read_bytes() == b""
    assert told[0] == (0, len(weights) + 2) and told[-1] == (len(weights) + 2, len(weights) + 2) and len(told) > 5
    assert local_model.local_model(URL, lambda *_: pytest.fail("it is here already")) == str(found)
    monkeypatch.setenv(hub.JOB_VARIABLE, str(tmp_path / "job"))
    assert local_model.local_model(URL) == str(found)
    put(model_safetensors=b"other")
    assert local_model.local_model(URL) == str(found), "a job goes on with what it began with"
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "another node"))
    with pytest.raises(StoreError, match="has changed since the job began"):
        local_model.local_model(URL)
    assert not list(blocks.rglob("*.part"))


def test_one_file_is_a_path_of_a_file(blocks: Path) -> None:
    put(tiny_gguf=b"GGUF")
    found = Path(local_model.local_model(f"{URL}/tiny.gguf"))
    assert found.name == "tiny.gguf" and found.read_bytes() == b"GGUF"
    with pytest.raises(NotFound, match="there are no files"):
        local_model.local_model("memory://bucket/nothing")


def test_a_folder_of_a_web_server_is_fetched_by_its_usual_names(blocks: Path) -> None:
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
    files = {"config.json": b"{}", "tokenizer.json": b"[]", "one.safetensors": b"1" * 2500, "two.safetensors": b"2"}
    files |= {"model.safetensors.index.json": index}
    with serving({f"/m/{name}?token=secret": content for name, content in files.items()}) as server:
        found = Path(local_model.local_model(f"{server.url}/m?token=secret"))
        assert {path.name: path.read_bytes() for path in found.iterdir()} == files
        del server.objects["/m/two.safetensors?token=secret"]
        with pytest.raises(LoaderError, match=r"two.safetensors: found nothing") as told:
            local_model.local_model(f"{server.url}/m?token=secret")
        assert "secret" not in str(told.value)
