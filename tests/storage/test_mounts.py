"""The mount table: what is kept, what is refused, and what an address means on either side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import Conflict, NotFound, SpecError, StoreError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.mounts import table
from jupyter_hyperpod.mounts.pod_disk import goes_with_pod
from jupyter_hyperpod.mounts.table import known_mounts, resolve_url
from jupyter_hyperpod.storage.apart.wire import ADDRESS_FILE, HeadAddress
from jupyter_hyperpod.storage.store import Store

FSX = MountSpec("fsx", "/mnt/custom-file-systems/fsx_lustre/fs-1", "/fsx")


def test_the_default_mount_is_always_there(store: Store) -> None:
    assert table.table(store) == {"shared": table.default_mount(store)}
    assert resolve_url("shared://a/b", known_mounts()) == str(store.shared / "a/b")
    with pytest.raises(NotFound, match="the default one always stays"):
        table.remove(store, "shared")


def test_one_address_on_either_side(store: Store) -> None:
    table.add(store, FSX)
    notebook, node = (table.roots(table.table(store).values(), side) for side in ("notebook", "node"))
    for url in ("shared://fsx/data/x.bin", "fsx://data/x.bin"):
        assert resolve_url(url, notebook) == "/mnt/custom-file-systems/fsx_lustre/fs-1/data/x.bin"
        assert resolve_url(url, node) == "/fsx/data/x.bin"
    assert resolve_url("shared://fsx", node) == "/fsx"
    assert resolve_url("shared://data/x", node) == str(store.shared / "data/x")
    assert resolve_url("shared://fsx/~/runs", node) == f"/fsx/users/{table.login()}/runs"
    for url in ("shared://fsx/../etc", "fsx://../x", "shared://fsx/~/../../../x"):
        with pytest.raises(SpecError, match="leaves its mount 'fsx'"):
            resolve_url(url, node)


def test_objects_keep_their_bucket_as_root(store: Store) -> None:
    table.add(store, MountSpec("s", "", "", driver="s3", source="s3://bucket/prefix"))
    found = known_mounts()
    assert resolve_url("shared://s/a/b", found) == "s3://bucket/prefix/a/b"
    assert resolve_url("s://", found) == "s3://bucket/prefix"
    for url in ("s://../other", "shared://s//a/b", "s:///bucket/prefix/a"):
        with pytest.raises(SpecError, match="leaves its mount 's'"):
            resolve_url(url, found)


def test_what_is_not_mounted_here_is_not_written_to_by_accident(store: Store, tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    table.add(store, MountSpec("n", path, path, driver="nfs", source="h:/e"))
    for url in ("shared://n/x", "n://x"):
        with pytest.raises(SpecError, match=r"'n' \(nfs\) is not mounted at .*mount attach n"):
            resolve_url(url, known_mounts())


def test_the_table_is_private_and_survives(store: Store) -> None:
    table.add(store, FSX)
    assert table.get(Store(store.root), "fsx") == FSX
    path = store.root / table.TABLE
    assert path.stat().st_mode & 0o777 == 0o600
    assert table.remove(store, "fsx") == FSX
    with pytest.raises(NotFound, match="known mounts: shared"):
        table.get(store, "fsx")


def test_a_table_that_others_could_write_is_not_believed(store: Store) -> None:
    table.add(store, FSX)
    (store.root / table.TABLE).chmod(0o666)
    with pytest.raises(StoreError, match="could have been changed by other users"):
        table.table(store)


def test_a_damaged_table_says_so(store: Store) -> None:
    (store.root / table.TABLE).write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        table.table(store)


def test_names_never_shadow_what_is_there(store: Store) -> None:
    table.add(store, FSX)
    with pytest.raises(Conflict, match="already"):
        table.add(store, FSX)
    with pytest.raises(SpecError, match="scheme of other addresses"):
        table.add(store, MountSpec("s3", "/a", "/b"))
    (store.shared / "corpus").mkdir()
    with pytest.raises(Conflict, match="a file of the default mount already"):
        table.add(store, MountSpec("corpus", "/a", "/b"))


def test_what_a_job_is_told_comes_back_whole(store: Store) -> None:
    specs = [
        table.default_mount(store),
        FSX,
        MountSpec("s", "", "", driver="s3", source="s3://b", options={"region": "r"}),
    ]
    text = json.dumps(table.for_job(specs))
    found = table.from_environment(text)
    assert found == {"shared": str(store.shared), "fsx": "/fsx", "s": "s3://b"}
    assert found.specs["s"] == specs[2]


def test_tables_changed_at_once_lose_nothing(store: Store) -> None:
    code = (
        "import sys\nfrom jupyter_hyperpod.mounts import table as mounts\n"
        "from jupyter_hyperpod.storage.store import Store\n"
        "from jupyter_hyperpod.core.mount_spec import MountSpec\n"
        "for n in range(10): mounts.add(Store(sys.argv[1]), MountSpec(f'{sys.argv[2]}{n}', '/a', '/b'))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(store.root), name]) for name in "abc"]
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    assert len(table.table(store)) == 31


def test_own_areas_are_private_and_cannot_be_taken(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    table.make_root(MountSpec("x", str(root), str(root), access="everyone"), str(root))
    own = Path(table.own_area(str(root), "everyone"))
    assert (root.stat().st_mode & 0o7777, own.parent.stat().st_mode & 0o7777) == (0o1777, 0o1777)
    assert own.stat().st_mode & 0o7777 == 0o700
    own.chmod(0o755)
    with pytest.raises(StoreError, match="not a private directory of yours .*mode 0755"):
        table.own_area(str(root))
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(StoreError, match="not a private directory of yours"):
        table.own_area(str(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make somebody else's directory")
def test_an_area_of_somebody_else_is_refused(tmp_path: Path) -> None:
    own = tmp_path / table.USERS / table.login()
    own.mkdir(parents=True, mode=0o700)
    os.chown(own, 12345, 12345)
    with pytest.raises(StoreError, match="owner 12345"):
        table.own_area(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "own"),
    [("/tmp/x", True), ("/fsx/run", False), ("/fsxother/run", True), ("/fsx", False), ("/fsx/models/x", True),
     ("/scratch/x", True), ("/fsx/../tmp/x", True)],
)  # fmt: skip
def test_what_is_on_a_pod_s_own_disk(path: str, own: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"image": "x", "head": "within", "claim": "a:/fsx,b:/fsx/models:ro", "host-path": "/scratch"}
    job = store.create_job(JobSpec("j", store.put_cell("1"), backend="kubernetes", kubernetes=options))
    monkeypatch.setenv("HYPERPOD_JOB_DIR", str(job.path))
    assert not goes_with_pod(Path(path)), "pods use the store of their head"
    (job.path / ADDRESS_FILE).write_bytes(HeadAddress("10.0.0.1", 1).encode())
    assert goes_with_pod(Path(path)) is own
    monkeypatch.delenv("HYPERPOD_JOB_DIR")
    assert not goes_with_pod(Path(path))


def test_a_mount_that_nodes_cannot_have_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    given = table.for_job([FSX]) | table.unreachable("shared", "the pods share no directory")
    monkeypatch.setenv("HYPERPOD_MOUNTS", json.dumps(given))
    assert resolve_url("fsx://x", known_mounts()) == "/fsx/x" == resolve_url("shared://fsx/x", known_mounts())
    with pytest.raises(SpecError, match="the pods share no directory"):
        resolve_url("shared://x", known_mounts())
