"""Models on mounts: ``shared://NAME/path`` wherever a URL is taken, also where only the mount's object store has it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.errors import Conflict, LoaderError, SpecError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.loader.read.source import Options
from jupyter_hyperpod.loader.write.sharding import merge_model, shard_model, verify_model, write_manifest
from jupyter_hyperpod.mounts import table
from jupyter_hyperpod.mounts.repository import Repository
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from tests.loader.models import Net, assert_same, decoder
from tests.support.s3_servers import S3Server

STATE, OTHER = decoder(blocks=3), decoder(seed=1, blocks=2)
INDEX = "model.safetensors.index.json"
MANIFEST = "model.safetensors.manifest.json"


@pytest.fixture
def disk(store: Store, tmp_path: Path) -> Path:
    """A mount named ``disk``."""
    path = tmp_path / "disk"
    table.add(store, MountSpec("disk", str(path), str(path)))
    path.mkdir()
    return path


@pytest.mark.parametrize("area", ["shared://", "shared://disk/", "disk://"])
def test_wherever_a_url_is_taken(area: str, store: Store, disk: Path) -> None:
    url, root = f"{area}m", store.shared if area == "shared://" else disk
    saved = hp.save_model(STATE, url, shard_bytes=60_000, checksum=True)
    assert saved.url == url and {*os.listdir(root / "m")} == {*saved.files, INDEX, MANIFEST}
    for one in (url, f"{url}/{INDEX}"):
        assert_same(hp.load_model(one, checksum=True), STATE)
    assert verify_model(url).checked == "checksums"
    assert merge_model(url, f"{area}one.safetensors").url == f"{area}one.safetensors"
    assert write_manifest(f"{area}one.safetensors") == f"{area}one.safetensors.manifest.json"
    assert_same(hp.load_model(f"{area}one.safetensors", checksum=f"{area}one.safetensors.manifest.json"), STATE)
    assert shard_model(f"{area}one.safetensors", f"{area}again/", 60_000).tensors == len(STATE)
    hp.save_model(Net(), f"{area}net.safetensors")
    assert hp.load_model(f"{area}net.safetensors", model=Net()).head.weight.shape == (16, 8)


def test_what_is_wrong_with_an_address(disk: Path) -> None:
    with pytest.raises(LoaderError, match="shared://disk/m: found neither"):
        hp.load_model("shared://disk/m")
    for url in ("shared://disk/../../etc", "disk://.."):
        for use in (hp.load_model, lambda url: hp.save_model(STATE, url)):
            with pytest.raises(SpecError, match="leaves its mount"):
                use(url)
    with pytest.raises(SpecError, match="Protocol not known: elsewhere"):
        hp.load_model("elsewhere://m")
    with pytest.raises(SpecError, match="not to elsewhere://"):
        hp.save_model(STATE, "elsewhere://m")


def test_a_read_only_mount_and_ones_own_area(store: Store, disk: Path) -> None:
    path = f"{disk}-fixed"
    table.add(store, MountSpec("fixed", path, path, read_only=True))
    hp.save_model(STATE, "shared://disk/~/m")
    (own,) = (disk / "users").iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    own.rename(path)
    assert_same(hp.load_model("shared://fixed/m"), STATE)
    with pytest.raises(Conflict, match="mount 'fixed' is read-only"):
        hp.save_model(STATE, "shared://fixed/m")


def ask(out: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["model", *words, "--json"]) == 0
    return json.loads(out.readouterr().out)


def test_the_command_line(disk: Path, store: Store, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hp.save_model(STATE, "shared://disk/m")
    assert len(ask(capsys, "shard", "shared://disk/m", "shared://disk/shards", "--shard-size", "60kB")["files"]) > 2
    assert ask(capsys, "manifest", "shared://disk/shards")["manifest"] == f"shared://disk/shards/{MANIFEST}"
    assert ask(capsys, "verify", "shared://disk/shards")["sound"] is True
    assert ask(capsys, "merge", "shared://disk/shards", "disk://one.safetensors")["files"] == ["one.safetensors"]
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "/nowhere")
    named = ("--store", str(store.root))
    assert ask(capsys, "load", "shared://disk/one.safetensors", *named)["tensors"] == len(STATE)
    assert main(["model", "load", "shared://disk/one.safetensors"]) == 1


def test_a_rank_of_a_job_knows_the_mounts_that_it_was_given(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hp.save_model(STATE, "shared://disk/m")
    monkeypatch.setenv("HYPERPOD_MOUNTS", json.dumps({"there": str(disk)}))
    assert_same(hp.load_model("shared://there/m"), STATE)
    with pytest.raises(SpecError, match="no mount named 'shared'"):
        hp.load_model("shared://disk/m")


@pytest.fixture
def behind(store: Store, tmp_path: Path) -> Iterator[Repository]:
    """A mount with an object store behind its files, in which there is a model in shards, and nothing here."""
    objects = fsspec.filesystem("memory")
    objects.store.clear()
    path = str(tmp_path / "fs")
    hp.save_model(STATE, str(tmp_path / "original"), shard_bytes=60_000, checksum=True)
    objects.pipe({f"/bucket/p/m/{one.name}": one.read_bytes() for one in (tmp_path / "original").iterdir()})
    spec = MountSpec("fs", path, path, repository="memory://bucket/p")
    table.add(store, spec)
    table.make_root(spec, path)
    yield Repository(spec, path, table.table(store))
    objects.store.clear()


@pytest.mark.parametrize("how", ["shared", "path", "index", "relative"])
def test_what_only_the_object_store_has_is_brought(
    how: str, behind: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(behind.root)
    named = {"shared": "shared://fs/m", "path": f"{behind.root}/m", "index": f"fs://m/{INDEX}", "relative": "m"}
    assert not os.path.exists(f"{behind.root}/m")
    assert_same(hp.load_model(named[how], checksum=True), STATE)
    assert {state for state, _ in behind.states().values()} == {"imported"}


def test_what_nobody_has_is_nothing_and_a_store_that_fails_is_an_error(
    behind: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LoaderError, match="found neither"):
        hp.load_model("shared://fs/other")

    def fail(*_: Any) -> None:
        raise OSError("the network is down")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", fail)
    with pytest.raises(LoaderError, match="no copy of it here .*the network is down"):
        hp.load_model("shared://fs/m")


@pytest.mark.parametrize("options", [{}, {"shard_bytes": 60_000}], ids=["a file", "shards"])
def test_a_model_that_only_the_object_store_has_is_replaced(options: dict[str, Any], behind: Repository) -> None:
    """It would come back from there as soon as its index is asked for, and its manifest too."""
    hp.save_model(OTHER, "shared://fs/m", **options)
    assert_same(hp.load_model("shared://fs/m"), OTHER)
    assert_same(hp.load_model("shared://fs/m", checksum=True), OTHER)
    for name in behind.select([], ("dirty",)):
        behind.export(name)
    assert verify_model("shared://fs/m").damaged == ()


def test_a_mount_table_that_is_damaged_is_no_business_of_a_path(store: Store, tmp_path: Path) -> None:
    (store.root / "mounts.json").write_text("{")
    hp.save_model(STATE, str(tmp_path / "m"))
    assert_same(hp.load_model(str(tmp_path / "m")), STATE)


@pytest.fixture
def bucket(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, S3Server], Path]:
    """Makes a mount out of a server's bucket; its keys are in a private file, and nowhere in the environment."""
    for name in (*[name for name in os.environ if name.startswith("AWS_")], "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")

    def make(name: str, server: S3Server) -> Path:
        keys = tmp_path / f"keys-{name}"
        keys.touch(0o600)
        keys.write_text(f"AWS_ACCESS_KEY_ID={server.access_key}\nAWS_SECRET_ACCESS_KEY={server.secret_key}\n")
        spec = MountSpec(
            name, "", "", driver="s3", source=f"{server.url}/{tmp_path.name}", credentials=str(keys),
            options={"endpoint": server.endpoint, "region": server.region},
        )  # fmt: skip
        table.add(store, spec)
        return keys

    return make


@pytest.mark.s3
def test_buckets_with_keys_of_their_own(
    bucket: Callable[[str, S3Server], Path], seaweedfs: S3Server, rclone_s3: S3Server
) -> None:
    """Two of them in one call, which lie at two servers."""
    keys = bucket("one", seaweedfs)
    bucket("two", rclone_s3)
    hp.save_model(STATE, "shared://one/m", checksum=True)
    assert_same(hp.load_model("shared://one/m", checksum=True), STATE)
    shard_model("shared://one/m", "two://m", 60_000)
    assert_same(hp.load_model("shared://two/m"), STATE)
    with pytest.raises(SpecError, match="no AWS credentials"):
        hp.load_model(f"{rclone_s3.url}/m", endpoint_url=rclone_s3.endpoint)
    keys.write_text("AWS_ACCESS_KEY_ID=wrong\nAWS_SECRET_ACCESS_KEY=wrong\n")
    with pytest.raises(LoaderError, match="no permission: InvalidAccessKeyId"):
        hp.load_model("shared://one/m")


def test_mounts_of_ones_own(tmp_path: Path) -> None:
    known = table.roots([MountSpec("mine", str(tmp_path), str(tmp_path))], "notebook")
    hp.save_model({"a": torch.ones(3)}, "mine://m", options=Options(mounts=known))
    assert hp.load_model("shared://mine/m", options=Options(mounts=known))["a"].sum() == 3
