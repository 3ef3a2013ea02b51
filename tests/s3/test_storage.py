"""Shared storage on real object stores: token data through the block cache, repositories, FUSE mounts of buckets."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from jupyter_hyperpod.control import attach
from jupyter_hyperpod.core.errors import Conflict, Denied, NotFound, SpecError, StoreError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import block_cache, copying, files, probe, remote, table
from jupyter_hyperpod.mounts.repository import Repository
from jupyter_hyperpod.mounts.table import known_mounts, resolve_url
from jupyter_hyperpod.runtime.data.tokens import TokenDataset
from jupyter_hyperpod.storage.store import Store
from tests.storage import volumes
from tests.support.faulty_proxy import Faults
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.s3
TOKENS = os.urandom(9 << 20)  # more than two blocks


@pytest.fixture(params=["seaweedfs", "rclone_s3"])
def server(request: pytest.FixtureRequest) -> S3Server:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def bucket(server: S3Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MountSpec:
    """A prefix of the server's bucket in the mount table; its keys lie in a private file."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "blocks"))
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"AWS_ACCESS_KEY_ID={server.access_key}\nAWS_SECRET_ACCESS_KEY={server.secret_key}\n")
    spec = MountSpec(
        "s", "", "", driver="s3", source=f"{server.url}/{tmp_path.name}", credentials=str(keys),
        options={"endpoint": server.endpoint, "region": server.region},
    )  # fmt: skip
    table.add(store, spec)
    return spec


def put(spec: MountSpec, name: str, content: bytes) -> str:
    url = f"{spec.source}/{name}"
    system, path = remote.file_system(url, {spec.name: spec})
    system.pipe_file(path, content)
    return url


def test_tokens_of_a_bucket_are_those_of_a_file(bucket: MountSpec, tmp_path: Path) -> None:
    put(bucket, "tokens", TOKENS)
    (tmp_path / "tokens").write_bytes(TOKENS)
    for width in (1, 2, 4):
        here = TokenDataset(tmp_path / "tokens", 1000, token_bytes=width)
        there = TokenDataset("shared://s/tokens", 1000, token_bytes=width)
        assert len(here) == len(there)
        chosen = [0, len(here) // 2, len(here) - 1, (4 << 20) // width // 1000]
        for one, other in zip(here.batch(chosen), there.batch(chosen), strict=True):
            assert torch.equal(one, other)


PARQUET = """
import sys, jupyter_hyperpod as hp, torch, pyarrow.parquet
from torch import nn

class Rows(torch.utils.data.Dataset):
    def __init__(self, path):
        self.table = pyarrow.parquet.read_table(path, memory_map=True)

    def __len__(self):
        return self.table.num_rows

    def __getitem__(self, index):
        return torch.tensor(self.table["x"][index].as_py())

path = hp.local_path(sys.argv[1])
torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(Rows(path), batch_size=8, num_workers=2, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(5):
        loss = step.run(lambda batch: model(batch[:, None]).pow(2).mean())
print(path, loss)
"""


def test_a_parquet_file_of_a_bucket_trains_as_one_here(bucket: MountSpec, store: Store, tmp_path: Path) -> None:
    rows = pyarrow.table({"x": [float(number % 7) for number in range(64)]})
    pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet")
    put(bucket, "rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    addresses = ["shared://s/rows.parquet", "shared://s/rows.parquet", str(tmp_path / "rows.parquet")]
    runs = [
        subprocess.Popen([sys.executable, "-c", PARQUET, address], stdout=subprocess.PIPE, text=True)
        for address in addresses
    ]
    (first, one), (second, two), (here, three) = (run.communicate(timeout=120)[0].split() for run in runs)
    assert first == second != here and one == two == three


BATCHES = """
import os, sys, hashlib
from jupyter_hyperpod.runtime.data.tokens import TokenDataset
data = TokenDataset("shared://s/tokens", 100_000)
for number in range(len(data)):
    inputs, targets = data.batch([number])
    digest = hashlib.sha256(inputs.numpy().tobytes() + targets.numpy().tobytes()).hexdigest()
    print(number, digest, data._content.fetched, flush=True)
    if number == int(sys.argv[1]):
        sys.stdin.read()
"""


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
def test_a_killed_workers_blocks_serve_the_next_one(bucket: MountSpec, store: Store) -> None:
    """The same batches, from the node; only what nobody had read comes from the server."""
    url = put(bucket, "tokens", TOKENS)
    assert url == resolve_url("shared://s/tokens", known_mounts())
    first = subprocess.Popen(
        [sys.executable, "-c", BATCHES, "50"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    seen = {}
    for line in first.stdout:
        number, digest, fetched = line.split()
        seen[int(number)] = digest
        if int(number) == 50:
            assert int(fetched) == 2
            break
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    second = subprocess.run([sys.executable, "-c", BATCHES, "-1"], capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    lines = [line.split() for line in second.stdout.splitlines()]
    assert {int(number): digest for number, digest, _ in lines if int(number) in seen} == seen
    assert lines[-1][2] == "1", "the killed one had brought all but the last block"


def test_an_object_that_changes_is_an_error_and_then_another_one(bucket: MountSpec) -> None:
    put(bucket, "tokens", TOKENS)
    data = TokenDataset("shared://s/tokens", 1000)
    before = data.batch([0])
    put(bucket, "tokens", TOKENS[::-1])
    with pytest.raises(StoreError, match="was changed while it was read"):
        data.batch([len(data) - 1])
    after = TokenDataset("shared://s/tokens", 1000).batch([0])
    assert not torch.equal(before[0], after[0])
    assert bytes(after[0][0].tolist()) == TOKENS[::-1][:1000]


def test_errors_name_the_object(bucket: MountSpec, store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"s3://.*/nothing: there is no such object"):
        TokenDataset("shared://s/nothing", 10)
    (tmp_path / "keys").write_text("AWS_ACCESS_KEY_ID=wrong\nAWS_SECRET_ACCESS_KEY=wrong\n")
    with pytest.raises(StoreError, match=r"cannot read s3://.*/nothing: "):
        TokenDataset("shared://s/nothing", 10)


def test_faults_on_the_way_are_errors_or_the_truth(
    seaweedfs: S3Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_proxy: Callable[..., Any],
    environment_of: Callable[[S3Server], None],
) -> None:  # fmt: skip
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "blocks"))
    seaweedfs.put(f"{tmp_path.name}/tokens", write(tmp_path / "tokens", TOKENS))
    _, through = fault_proxy(seaweedfs, Faults(("truncate", "reset"), probability=0.3, seed=4))
    environment_of(through)
    data = None
    for _ in range(20):
        try:
            data = data or TokenDataset(f"{seaweedfs.url}/{tmp_path.name}/tokens", 4 << 20)
            assert bytes(data.batch([1])[0][0].tolist()) == TOKENS[4 << 20 : 8 << 20]
            return
        except StoreError:
            continue
    raise AssertionError("not once in twenty times")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files_go_in_and_out_of_a_bucket(bucket: MountSpec, tmp_path: Path) -> None:
    known = known_mounts()
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a").write_bytes(b"a" * 10)
    (tree / "sub" / "b").write_bytes(TOKENS)
    assert copying.copy(str(tree), "shared://s/tree", known, recursive=True) == 10 + len(TOKENS)
    assert {one["name"] for one in remote.listing(f"{bucket.source}/tree", known.specs)} == {"a", "sub"}
    copying.copy("shared://s/tree", str(tmp_path / "back"), known, recursive=True)
    assert (tmp_path / "back" / "sub" / "b").read_bytes() == TOKENS
    copying.copy("shared://s/tree/a", "shared://s/copied", known)
    copying.copy("s://copied", str(tmp_path / "copied"), known)
    assert (tmp_path / "copied").read_bytes() == b"a" * 10


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("size", [0, 1000, 6 << 20])
def test_a_copy_that_is_interrupted_leaves_what_was_there(
    bucket: MountSpec, monkeypatch: pytest.MonkeyPatch, size: int, kind: type[BaseException]
) -> None:
    """Whether or not parts of it were uploaded by then."""
    put(bucket, "new", TOKENS)
    url = put(bucket, "old", b"old")
    known = known_mounts()
    system, path = remote.file_system(url, known.specs)
    monkeypatch.setattr(system, "default_block_size", 5 << 20)
    whole = copying.shutil.copyfileobj

    def interrupted(reader: Any, writer: Any, length: int) -> None:
        writer.write(reader.read(size))
        raise kind("now")

    monkeypatch.setattr(copying.shutil, "copyfileobj", interrupted)
    for goal in ("old", "other"):
        with pytest.raises((KeyboardInterrupt, StoreError), match="now"):
            copying.copy("shared://s/new", f"shared://s/{goal}", known)
    gc.collect()
    assert system.cat_file(path) == b"old" and not system.exists(f"{system._parent(path)}/other")
    name, _, key = path.partition("/")
    begun = [upload["Key"] for upload in system.list_multipart_uploads(name)]
    assert not [one for one in begun if one.startswith(key.removesuffix("old"))], "no part of it takes any room"
    monkeypatch.setattr(copying.shutil, "copyfileobj", whole)
    assert copying.copy("shared://s/new", "shared://s/old", known) == len(TOKENS)
    assert system.cat_file(path) == TOKENS


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
def test_folders_made_in_a_console_are_no_files(bucket: MountSpec, store: Store, tmp_path: Path) -> None:
    put(bucket, "data/sub/a", b"a")
    system, base = remote.file_system(bucket.source, known_mounts().specs)
    for name in ("data/", "data/sub/", "data/none/"):
        system.pipe_file(f"{base}/{name}", b"")
    assert copying.copy("shared://s/data", str(tmp_path / "back"), known_mounts(), recursive=True) == 1
    assert [path.name for path in (tmp_path / "back").rglob("*")] == ["sub", "a"]
    root = str(tmp_path / "fs")
    spec = MountSpec("fs", root, root, repository=f"{bucket.source}/data")
    table.add(store, spec)
    table.make_root(spec, root)
    found = Repository(spec, root, table.table(store))
    assert (found.refresh(), list(found.states())) == (1, ["sub/a"])
    browsed = files.mount_files(store, bucket.name)
    assert [(one.name, one.kind) for one in browsed.page("data", "")[0]] == [
        ("none", "directory"),
        ("sub", "directory"),
    ]
    assert [(one.name, one.kind) for one in browsed.page("data/sub", "")[0]] == [("a", "file")]
    assert browsed.page("data/none", "") == ([], None)
    assert browsed.look("data/none").kind == "directory"


def test_a_bucket_behind_a_directory(bucket: MountSpec, store: Store, tmp_path: Path) -> None:
    put(bucket, "data/a", TOKENS)
    root = str(tmp_path / "fs")
    spec = MountSpec("fs", root, root, repository=f"{bucket.source}/data")
    table.add(store, spec)
    table.make_root(spec, root)
    found = Repository(spec, root, table.table(store))
    assert found.refresh() == 1
    data = TokenDataset("shared://fs/a", 1000)
    assert bytes(data.batch([7])[0][0].tolist()) == TOKENS[7000:8000]
    Path(root, "a").write_bytes(b"smaller")
    Path(root, "new").write_bytes(b"new")
    for name in found.select([], ("dirty",)):
        found.export(name)
    assert found.refresh() == 2
    assert {name: state for name, (state, _) in found.states().items()} == {"a": "exported", "new": "exported"}
    found.release("a")
    assert Path(found.fetch("a")).read_bytes() == b"smaller"


def filer_of(server: S3Server) -> str:
    """Where SeaweedFS serves its files to ``weed mount``."""
    assert isinstance(server.process.args, list)
    (port,) = (word.partition("=")[2] for word in server.process.args if str(word).startswith("-filer.port="))
    return f"127.0.0.1:{port}"


@pytest.fixture(params=["rclone", "seaweedfs"])
def mounted(
    request: pytest.FixtureRequest, seaweedfs: S3Server, store: Store, tmp_path: Path,
    environment_of: Callable[[S3Server], None],
) -> Iterator[MountSpec]:  # fmt: skip
    """A bucket on SeaweedFS, mounted through FUSE."""
    volumes.need(request.param)
    environment_of(seaweedfs)
    path = str(tmp_path / "mnt")
    if request.param == "rclone":
        options = {"provider": "Other", "endpoint": seaweedfs.endpoint, "vfs-write-back": "1s", "region": "us-east-1"}
        source = f":s3:{seaweedfs.bucket}/{tmp_path.name}"
    else:
        options, source = {"dlm": ""}, f"{filer_of(seaweedfs)}/buckets/{seaweedfs.bucket}"
    spec = MountSpec("m", path, path, driver=request.param, source=source, options=options)
    table.add(store, spec)
    try:
        attach.attach(store, spec)
        yield spec
    finally:
        attach.detach(store, spec, force=True)


@pytest.mark.fuse
def test_a_bucket_mounted_for_real(mounted: MountSpec, store: Store, eventually: Callable[..., Any]) -> None:
    root = Path(mounted.notebook_path)
    (root / "tokens").write_bytes(TOKENS)
    data = TokenDataset("shared://m/tokens", 1000)
    assert bytes(data.batch([8000])[0][0].tolist()) == TOKENS[8_000_000:8_001_000]
    (root / "tokens").rename(root / "renamed")
    listed = {one["name"] for one in probe.listing(store, mounted, str(root))["entries"] if one["kind"] == "file"}
    assert "renamed" in listed and "tokens" not in listed
    del data  # its mapping holds the mount
    found = {one["check"]: one["result"] for one in probe.check(store, mounted)}
    assert (found["shared mmap"], found["fsync"], found["large file"]) == ("pass", "pass", "pass")
    attach.detach(store, mounted)
    attach.attach(store, mounted)
    assert (root / "renamed").read_bytes() == TOKENS


def test_what_only_the_bucket_has_is_in_the_file_browser(bucket: MountSpec, store: Store, tmp_path: Path) -> None:
    for name in ("a", "sub/b", "sub/deep/c"):
        put(bucket, f"data/{name}", name.encode())
    root = str(tmp_path / "fs")
    spec = MountSpec("fs", root, root, repository=f"{bucket.source}/data")
    table.add(store, spec)
    table.make_root(spec, root)
    assert Repository(spec, root, table.table(store)).refresh() == 3
    browsed = files.mount_files(store, "fs")
    Path(root, "b").write_bytes(b"here")
    kinds = [(one.name, one.kind, one.bytes) for one in browsed.page("", "")[0] if not one.name.startswith(".")]
    assert kinds == [("a", "file", 1), ("b", "file", 4), ("sub", "directory", 0)]
    assert [one.name for one in browsed.page("sub", "")[0]] == ["b", "deep"]
    assert (browsed.look("sub/deep").kind, browsed.look("sub/b").bytes) == ("directory", 5)
    assert not Path(root, "sub").exists()
    with pytest.raises(Denied, match="change it there"):
        browsed.discard("sub/b")
    with closing(browsed.content("sub/b")) as content:
        assert b"".join(content) == b"sub/b" == Path(root, "sub", "b").read_bytes()
        assert content.item == browsed.look("sub/b")
    with pytest.raises(NotFound):
        browsed.look("sub/x")
    with pytest.raises(NotFound):
        browsed.page("x", "")


def test_a_bucket_in_the_file_browser(bucket: MountSpec, store: Store, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "PAGE", 2)
    browsed = files.mount_files(store, bucket.name)
    source = tmp_path / "part"
    source.write_bytes(os.urandom(files.CHUNK_BYTES + 5))
    for name in ("run/b ü.bin", "run/a", "top"):
        browsed.put(name, source)
    assert [(one.name, one.kind) for one in browsed.page("", "")[0]] == [("run", "directory"), ("top", "file")]
    browsed.put("run/c", source)
    first, after = browsed.page("run", "")
    second, last = browsed.page("run", after or "")
    assert [one.name for one in (*first, *second)] == ["a", "b ü.bin", "c"] and (after, last) == ("b ü.bin", None)
    assert (browsed.look("run").kind, browsed.look("run/a").bytes) == ("directory", source.stat().st_size)
    with closing(browsed.content("run/b ü.bin")) as content:
        assert b"".join(content) == source.read_bytes()
    with pytest.raises(Conflict, match="there already"):
        browsed.move("run/a", "top")
    browsed.move("run/a", "run/d")
    with pytest.raises(NotFound):
        browsed.look("run/a")
    with pytest.raises(Conflict, match="not empty"):
        browsed.remove("run")
    browsed.remove("run/d")
    with pytest.raises(NotFound):
        browsed.content("run/d")
    browsed.discard("top")
    assert [one.name for one in browsed.page("", "")[0]] == [f".Trash-{os.getuid()}", "run"]
    for name in ("glob/a[1].bin", "glob/a1.bin", "glob/*"):
        browsed.put(name, source)
    browsed.discard("glob/a[1].bin")
    browsed.move("glob/*", "glob/star")
    assert [one.name for one in browsed.page("glob", "")[0]] == ["a1.bin", "star"]
    with pytest.raises(Conflict, match="is a directory"):
        browsed.put("glob", source)
    with pytest.raises(Denied, match="no empty directories"):
        browsed.make("new")
    with pytest.raises(SpecError):
        browsed.look("../other")
