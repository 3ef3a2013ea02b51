"""`save_model`: what is written is read by everybody, appears when it is whole, and leaves nothing where it fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError, SpecError
from jupyter_hyperpod.loader.read.progress import LoadProgress
from jupyter_hyperpod.loader.read.source import Options
from tests.loader.models import Net, assert_same, decoder, encoded
from tests.support.faulty_proxy import FaultProxy, Faults
from tests.support.s3_servers import S3Server

STATE = decoder(blocks=3)
OTHER = decoder(seed=1, blocks=2)
LARGE = {"a": torch.arange(5_000_000, dtype=torch.float32), "b": torch.ones(3, dtype=torch.float64)}
INDEX = "model.safetensors.index.json"
MANIFEST = "model.safetensors.manifest.json"
Make = Callable[..., tuple[FaultProxy, S3Server]]
Environment = Callable[[S3Server], None]


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


def test_one_file_as_the_formats_library_reads_it(tmp_path: Path) -> None:
    for url in (tmp_path / "one.safetensors", f"file://{tmp_path}/two%20words.safetensors"):
        saved = hp.save_model(STATE, url, metadata={"format": "pt", "who": "ü"})
        assert saved.bytes == sum(tensor.nbytes for tensor in STATE.values())
        assert saved.tensors == len(STATE)
    assert names(tmp_path) == {"one.safetensors", "two words.safetensors"}
    assert_same(load_file(tmp_path / "two words.safetensors"), STATE)
    with safe_open(tmp_path / "one.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "who": "ü"}


def test_shards_and_their_index(tmp_path: Path) -> None:
    saved = hp.save_model(STATE, str(tmp_path / "new" / "model"), shard_bytes=50_000, checksum=True)
    directory = tmp_path / "new" / "model"
    assert len(saved.files) > 2
    assert names(directory) == {*saved.files, INDEX, MANIFEST}
    index = json.loads((directory / INDEX).read_text())
    assert index["metadata"]["total_size"] == saved.bytes
    for file in saved.files:
        shard = load_file(directory / file)
        assert {index["weight_map"][name] for name in shard} == {file}
        assert len(shard) == 1 or sum(tensor.nbytes for tensor in shard.values()) <= 50_000
    assert_same(hp.load_model(str(directory), checksum=True), STATE)


def test_tensors_of_every_kind(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {
        "turned": base.T,
        "strided": base[::2, 1:5:2],
        "expanded": torch.ones(1).expand(5),
        "shared": base,
        "part": base[1:3],
        "scalar": torch.tensor(3, dtype=torch.int8),
        "empty": torch.empty(0, 7),
        "bool": torch.tensor([True, False, True]),
        "conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "with gradient": torch.ones(2, requires_grad=True),
        "float8": torch.arange(7).to(torch.float8_e4m3fn),
        "": torch.ones(2, dtype=torch.bfloat16),
    }
    hp.save_model(state, str(tmp_path))
    found = load_file(tmp_path / "model.safetensors")
    assert_same(found, {name: tensor.detach().resolve_conj().contiguous() for name, tensor in state.items()})
    assert_same(hp.load_model(str(tmp_path)), found)
    hp.save_model({}, str(tmp_path))
    assert hp.load_model(str(tmp_path)) == load_file(tmp_path / "model.safetensors") == {}


def test_a_module_whose_parameters_are_tied(tmp_path: Path) -> None:
    saved = hp.save_model(Net(), str(tmp_path))
    assert saved.tensors == len(Net().state_dict()) - 1
    model = hp.load_model(str(tmp_path), model=Net())
    assert model.head.weight is model.embed.weight


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_module_of_which_each_process_holds_a_part(tmp_path: Path) -> None:
    model = Net()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(SpecError, match=r"is a DTensor.*get_model_state_dict\(.*full_state_dict=True"):
        hp.save_model(model, tmp_path)
    assert not names(tmp_path)
    hp.save_model(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), tmp_path)
    assert_same(hp.load_model(tmp_path), state)


def test_wrong_requests(tmp_path: Path) -> None:
    wrong: list[tuple[Any, str, dict[str, Any], str]] = [
        ({"a": 3}, "m", {}, "'a' is a int"),
        ({"a": torch.ones(2).to_sparse()}, "m", {}, "sparse"),
        ({"a": torch.ones(2, device="meta")}, "m", {}, "meta device"),
        ({"__metadata__": torch.ones(2)}, "m", {}, "keeps for itself"),
        (STATE, "m", {"shard_bytes": 0}, "shard_bytes is 0"),
        (STATE, "m.safetensors", {"shard_bytes": 100}, "is one file"),
        (STATE, INDEX, {}, "is an index"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, "m", {}, "complex128"),
        ({"\ud800": torch.ones(2)}, "m", {}, "is no text"),
    ]
    for state, name, options, message in wrong:
        with pytest.raises((SpecError, LoaderError), match=message):
            hp.save_model(state, str(tmp_path / name), **options)
    for url in ("https://host/model", "memory://model"):
        with pytest.raises(SpecError, match="written to s3:// and to files"):
            hp.save_model(STATE, url)
    assert not names(tmp_path)


@pytest.mark.s3
def test_a_model_takes_the_place_of_another(place: tuple[str, Callable[[], set[str]]]) -> None:
    url, listed = place
    small: dict[str, Any] = {"shard_bytes": 60_000}
    for state, options in (
        (STATE, {}),
        (OTHER, small),
        (STATE, small),
        (OTHER, small | {"checksum": True}),
        (STATE, {}),
    ):
        saved = hp.save_model(state, url, **options)
        rest = ({INDEX} if len(saved.files) > 1 else set()) | ({MANIFEST} if "checksum" in options else set())
        assert listed() == {*saved.files, *rest}
        assert_same(hp.load_model(url, checksum="checksum" in options), state)


@pytest.mark.s3
def test_many_parts(place: tuple[str, Callable[[], set[str]]]) -> None:
    url, listed = place
    told: list[LoadProgress] = []
    hp.save_model(LARGE, f"{url}/one.safetensors", checksum=True, progress=told.append)
    assert listed() == {"one.safetensors", "one.safetensors.manifest.json"}
    assert_same(hp.load_model(f"{url}/one.safetensors", checksum=True), LARGE)
    assert told[-1].done and told[-1].bytes_total == 20_000_024 and told[-1].tensors_total == 2
    changed = LARGE | {"a": LARGE["a"] + 1}
    hp.save_model(changed, f"{url}/one.safetensors")
    assert listed() == {"one.safetensors"}  # the manifest was of another model
    assert_same(hp.load_model(f"{url}/one.safetensors"), changed)


class Enough(Exception):
    pass


@pytest.mark.s3
@pytest.mark.parametrize("how", ["an error", "Ctrl-C"])
def test_what_is_given_up_leaves_what_was_there(
    how: str, place: tuple[str, Callable[[], set[str]]], interruptible: None
) -> None:
    url, listed = place
    hp.save_model(STATE, url, shard_bytes=60_000, checksum=True)
    before = listed()

    def stop(_: LoadProgress) -> None:
        if how == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        else:
            raise Enough

    with pytest.raises(KeyboardInterrupt if how == "Ctrl-C" else Enough):
        hp.save_model(LARGE, url, shard_bytes=10_000_000, connections=1, progress=stop)
    assert listed() == before
    assert_same(hp.load_model(url, checksum=True), STATE)


def test_a_disk_without_room_and_one_that_is_read_only(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, torch
import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError
here = {str(tmp_path)!r}
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", here], check=True)
hp.save_model({{"a": torch.ones(10)}}, here)
def fails(size, **options):
    try:
        hp.save_model({{"a": torch.ones(size), "b": torch.ones(size)}}, here, **options)
    except LoaderError as error:
        print(error)
    print(sorted(os.listdir(here)), len(hp.load_model(here)))
fails(1_000_000)
fails(400_000, shard_bytes=1_600_000, checksum=True)
fails(700_000, shard_bytes=2_800_000)
subprocess.run(["mount", "-o", "remount,ro", here], check=True)
fails(10)
"""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("NOT VERIFIED HERE: no user namespaces, so no small file system to fill")
    done = subprocess.run([unshare, "-rm", sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = f"{tmp_path}/model.safetensors: found No space left on device; expected room for "
    assert lines[0].startswith(first + "80001")
    assert lines[1] == "['model.safetensors'] 1"
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX, MANIFEST]
    assert lines[2] == f"{sorted(files)} 2"
    assert "No space left on device" in lines[3]
    assert lines[4] == f"{sorted(files)} 2"
    assert "found Read-only file system; expected a directory that can be written to" in lines[5]


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody who may not write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(0o555)
    monkeypatch.chdir(tmp_path / "theirs")
    for url in (".", "new"):
        with unprivileged(), pytest.raises(LoaderError) as caught:
            hp.save_model(STATE, url)
        error = caught.value
        assert error.source.startswith(url)
        assert (error.found, error.expected) == ("Permission denied", "a directory that can be written to")


@pytest.mark.s3
def test_buckets_that_refuse(
    rclone_s3: S3Server, seaweedfs: S3Server, environment_of: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment_of(rclone_s3)
    with pytest.raises(LoaderError, match=r"NoSuchBucket \(status 404\); expected a bucket that can be written to"):
        hp.save_model(STATE, "s3://no-such-bucket/m")
    for server in (rclone_s3, seaweedfs):
        environment_of(server)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        with pytest.raises(
            LoaderError, match=r"no permission: SignatureDoesNotMatch \(status 403\); expected a bucket"
        ):
            hp.save_model(STATE, f"{server.url}/m")


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["503", "429", "reset", "truncate", "stall"])
def test_uploads_through_a_bad_network(
    kind: str, seaweedfs: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    methods = ("PUT",) if kind == "stall" else ("PUT", "POST", "DELETE")  # a server may be slow to complete an upload
    faults = Faults((kind,), probability=0.3, seed=2, at_most=8, methods=methods)
    proxy, server = fault_proxy(seaweedfs, faults)
    environment_of(server)
    url = f"{server.url}/saved-{kind}"
    hp.save_model(STATE, url, shard_bytes=30_000, checksum=True, options=Options(timeout_s=1.0))
    assert proxy.counts[kind]
    assert_same(hp.load_model(url, checksum=True), STATE)


@pytest.mark.s3
def test_a_server_that_is_gone_in_the_middle(
    seaweedfs: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    proxy, server = fault_proxy(seaweedfs, Faults(bytes_per_s=20e6))
    environment_of(server)
    with pytest.raises(LoaderError, match="2 times; expected an answer"):
        options = Options(attempts=2)
        hp.save_model(LARGE, f"{server.url}/gone", options=options, progress=lambda _: proxy.close())
    environment_of(seaweedfs)
    with pytest.raises(LoaderError, match="neither"):
        hp.load_model(f"{server.url}/gone")


def test_what_was_saved_is_what_the_library_would_have_saved(tmp_path: Path) -> None:
    hp.save_model({name: STATE[name] for name in sorted(STATE)}, f"{tmp_path}/m.safetensors")
    content = (tmp_path / "m.safetensors").read_bytes()
    assert content[-1000:] == encoded(STATE)[-1000:]
    assert len(content) == len(encoded(STATE))
