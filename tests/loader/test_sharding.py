"""Models in other files: shard, merge, manifest, verify, on files and in buckets, from Python and the command line."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import jupyter_hyperpod as hp
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.read.plan import CHUNK_BYTES
from jupyter_hyperpod.loader.write.sharding import merge_model, shard_model, verify_model, write_manifest
from tests.loader.models import assert_same, decoder
from tests.support.s3_servers import S3Server

STATE = decoder(blocks=3) | {"count": torch.arange(5), "mask": torch.tensor([True, False, True])}
INDEX = "model.safetensors.index.json"
MANIFEST = "model.safetensors.manifest.json"
Environment = Callable[[S3Server], None]
Out = pytest.CaptureFixture[str]


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """One file, written by the format's library."""
    path = tmp_path / "original.safetensors"
    save_file(STATE, path, metadata={"format": "pt", "by": "somebody"})
    return path


def test_there_and_back(original: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    saved = shard_model(original, shards, 50_000)
    assert len(saved.files) > 3 and names(shards) == {*saved.files, INDEX}
    assert_same(hp.load_model(str(shards)), STATE)
    for source in (shards, shards / INDEX):
        merged = merge_model(str(source), str(tmp_path / "merged.safetensors"), checksum=True)
        assert merged.files == ("merged.safetensors",)
        assert_same(load_file(tmp_path / "merged.safetensors"), STATE)
        with safe_open(tmp_path / "merged.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt", "by": "somebody"}
    assert verify_model(tmp_path / "merged.safetensors").checked == "checksums"


@pytest.mark.parametrize("size", [0, -1, 2**40, "many"])
def test_a_manifest_of_impossible_chunks(size: object, original: Path) -> None:
    path = Path(write_manifest(original))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chunk_bytes": size}))
    for read in (verify_model, partial(hp.load_model, checksum=True)):
        with pytest.raises(LoaderError, match=r"manifest\.json.*(chunks of|no manifest)"):
            read(original)


def test_in_place(original: Path, tmp_path: Path) -> None:
    directory = tmp_path / "m"
    shard_model(str(original), str(directory), 60_000)
    for size in (30_000, 100_000):
        saved = shard_model(str(directory), str(directory), size)
        assert names(directory) == {*saved.files, INDEX}
        assert_same(hp.load_model(str(directory)), STATE)
    merge_model(str(directory), str(directory))
    assert names(directory) == {"model.safetensors"}
    assert_same(hp.load_model(str(directory)), STATE)


@pytest.mark.s3
def test_between_buckets_and_files(
    original: Path, tmp_path: Path, seaweedfs: S3Server, rclone_s3: S3Server, environment_of: Environment
) -> None:
    for server in (seaweedfs, rclone_s3):
        environment_of(server)
        shards = f"{server.url}/{tmp_path.name}/shards"
        saved = shard_model(str(original), shards, 80_000, checksum=True)
        assert verify_model(shards).damaged == ()
        assert_same(hp.load_model(shards, checksum=True), STATE)
        merge_model(shards, f"{server.url}/{tmp_path.name}/one.safetensors")
        assert_same(hp.load_model(f"{server.url}/{tmp_path.name}/one.safetensors"), STATE)
        merge_model(shards, str(tmp_path / "back"))
        assert_same(load_file(tmp_path / "back" / "model.safetensors"), STATE)
        where = write_manifest(f"{server.url}/{tmp_path.name}/one.safetensors")
        assert where == f"{server.url}/{tmp_path.name}/one.safetensors.manifest.json"
        hp.load_model(f"{server.url}/{tmp_path.name}/one.safetensors", checksum=True)
        client = server.client()
        named: dict[str, Any] = {"Bucket": server.bucket, "Key": f"{tmp_path.name}/shards/{saved.files[1]}"}
        content = bytearray(client.get_object(**named)["Body"].read())
        content[-1] ^= 1
        client.put_object(**named, Body=bytes(content))
        client.close()
        (damage,) = verify_model(shards).damaged
        assert damage.file == saved.files[1] and damage.end == len(content)
        with pytest.raises(LoaderError, match="checksum .* of bytes .*, as the manifest says"):
            hp.load_model(shards, checksum=True)


def test_every_byte_is_under_the_manifest(tmp_path: Path) -> None:
    state = {f"layers.{i}.w": torch.full((CHUNK_BYTES // 2,), i, dtype=torch.uint8) for i in range(5)}
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    assert write_manifest(str(path)) == f"{path}.manifest.json"
    assert verify_model(str(tmp_path)).damaged == ()
    (data,) = {path.stat().st_size - sum(tensor.nbytes for tensor in state.values())}
    content = bytearray(path.read_bytes())
    for place, tensors in (
        (data, ("layers.0.w", "layers.1.w")),
        (data + CHUNK_BYTES, ("layers.2.w", "layers.3.w")),
        (len(content) - 1, ("layers.4.w",)),
    ):
        damaged = content.copy()
        damaged[place] ^= 0x80
        path.write_bytes(damaged)
        (found,) = verify_model(str(path)).damaged
        assert found.begin <= place < found.end and found.tensors == tensors
        with pytest.raises(LoaderError, match="differ from what was written"):
            hp.load_model(str(path), checksum=True)
    path.write_bytes(content.replace(b"layers.0.w", b"layers.X.w"))
    (found,) = verify_model(str(path)).damaged
    assert (found.begin, found.end, found.tensors) == (0, data, ())
    path.write_bytes(content[:-1])
    with pytest.raises(LoaderError, match="truncated"):
        verify_model(str(path))


def test_a_manifest_of_another_model(original: Path, tmp_path: Path) -> None:
    assert verify_model(str(original)).checked == "structure"
    with pytest.raises(LoaderError, match=r"none\.json: found No such file"):
        verify_model(str(original), str(tmp_path / "none.json"))
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.ones(3)}, other)
    manifest = write_manifest(str(other), str(tmp_path / "sums.json"))
    with pytest.raises(LoaderError, match=r"found nothing about original\.safetensors"):
        verify_model(str(original), manifest)
    (tmp_path / "sums.json").write_text(json.dumps({"format": "another"}))
    with pytest.raises(LoaderError, match="manifest"):
        verify_model(str(other), manifest)


@pytest.mark.parametrize("chunks", [-1, 1])
def test_a_manifest_of_more_or_fewer_chunks_than_there_are(original: Path, chunks: int) -> None:
    where = Path(write_manifest(str(original)))
    record = json.loads(where.read_text())
    sums = record["files"][original.name]
    sums["chunks"] = sums["chunks"][:chunks] if chunks < 0 else sums["chunks"] * 2
    where.write_text(json.dumps(record))
    for check in (verify_model, lambda url: hp.load_model(url, checksum=True)):
        with pytest.raises(LoaderError, match=f"found {len(sums['chunks'])} chunks in the manifest; expected 1"):
            check(str(original))


def test_no_more_than_some_chunks_are_in_memory(tmp_path: Path) -> None:
    state = {f"layers.{i}.w": torch.full((CHUNK_BYTES,), i, dtype=torch.uint8) for i in range(12)}
    save_file(state, tmp_path / "model.safetensors")
    del state
    tracemalloc.start()
    try:
        shard_model(str(tmp_path), str(tmp_path / "shards"), 40_000_000, connections=2)
        merge_model(str(tmp_path / "shards"), str(tmp_path / "merged"), connections=2)
        verify_model(str(tmp_path / "merged"), connections=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * CHUNK_BYTES
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def ask(out: Out, *words: str) -> Any:
    assert main(["model", *words, "--json"]) == 0
    return json.loads(out.readouterr().out)


def test_the_command_line(original: Path, tmp_path: Path, capsys: Out) -> None:
    shards = str(tmp_path / "shards")
    found = ask(capsys, "shard", str(original), shards, "--shard-size", "50kB", "--checksum")
    assert found["url"] == shards and found["tensors"] == len(STATE) and len(found["files"]) > 3
    assert ask(capsys, "verify", shards)["sound"] is True
    loaded = ask(capsys, "load", shards, "--checksum", "--connections", "3")
    assert loaded["bytes"] == found["bytes"] and loaded["retries"] == 0 and loaded["first_layer_s"] > 0
    assert ask(capsys, "load", str(original), "--tp", "1/3")["bytes"] < found["bytes"] / 2
    assert ask(capsys, "merge", shards, str(tmp_path / "one.safetensors"))["files"] == ["one.safetensors"]
    manifest = ask(capsys, "manifest", str(original), str(tmp_path / "sums.json"))["manifest"]
    assert ask(capsys, "verify", str(original), "--manifest", manifest)["checked"] == "checksums"
    for words, text in (
        (["shard", str(original), shards], f"{shards}: 1 file, {len(STATE)} tensors, "),
        (["merge", shards, str(tmp_path / "two.safetensors")], "two.safetensors: 1 file, "),
        (["manifest", shards], f"{shards}/{MANIFEST}\n"),
        (["verify", shards], f"{shards} matches its manifest: {len(STATE)} tensors, "),
        (["verify", str(original)], "is well formed; there is no manifest to compare its bytes with"),
        (["load", shards], ", first layer after "),
    ):
        assert main(["model", *words]) == 0
        assert text in capsys.readouterr().out
    content = bytearray((tmp_path / "shards" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "shards" / "model.safetensors").write_bytes(content)
    assert main(["model", "verify", shards]) == 1
    said = capsys.readouterr().out
    assert "differs  model.safetensors, bytes " in said and "is damaged: 1 places" in said
    assert main(["model", "verify", shards, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["sound"] is False


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["load", "/nowhere"], 1, "error: /nowhere: found neither"),
        (["load", "/nowhere", "there"], 2, "takes one URL"),
        (["shard", "/nowhere"], 2, "needs a TARGET"),
        (["merge", "/nowhere", "there", "--shard-size", "5GB"], 2, "--shard-size belongs to `model shard`"),
        (["load", "/nowhere", "--connections", "0"], 2, "expected at least 1"),
        (["shard", "/nowhere", "there", "--shard-size", "0"], 1, "error: /nowhere: found neither"),
    ],
)
def test_bad_use(words: list[str], status: int, message: str, capsys: Out) -> None:
    assert main(["model", *words]) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--tp", "3/3"), ("--tp", "x"), ("--shard-size", "much")])
def test_options_that_are_none(option: str, value: str, capsys: Out) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model", "load", "/nowhere", option, value])
    assert ended.value.code == 2
    assert repr(value) in capsys.readouterr().err
