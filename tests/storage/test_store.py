"""The job store: private, whole or absent, and never left through a name or an address."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import NotFound, SpecError, StoreError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.mounts.table import resolve_url
from jupyter_hyperpod.storage.store import Store, default_root, write_private
from jupyter_hyperpod.supervisor.entry import unfinished
from tests.storage import full_disk


def make_spec(store: Store, name: str = "job") -> JobSpec:
    return JobSpec(name=name, cell_digest=store.put_cell("print('hello')"))


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = Store(tmp_path / "deep" / "store").prepare()
        store.create_job(make_spec(store))
    finally:
        os.umask(old)
    entries = [store.root, *store.root.rglob("*")]
    assert len(entries) > 8
    for path in entries:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"


def test_what_the_sessions_of_a_job_leave_is_no_mark_of_its_end(store: Store) -> None:
    job = store.create_job(make_spec(store))
    job.session_end(1).parent.mkdir()
    assert [found.id for found in unfinished(store, set(), ())] == [job.id]


def test_a_job_is_found_again(store: Store) -> None:
    spec = make_spec(store)
    job = store.create_job(spec)
    again = store.job(job.id)
    assert again.spec() == spec
    assert len(again.secret()) == 32
    assert again.secret() != store.create_job(spec).secret()
    assert store.cell(spec.cell_digest) == "print('hello')"
    assert hashlib.sha256(b"print('hello')").hexdigest() == spec.cell_digest
    assert job.id in store.job_ids()
    assert len(store.job_ids()) == 2


@pytest.mark.parametrize(
    "job_id", ["../cells", "job-abcdefgh/../..", "", ".new-abcdefgh", "a/b-abcdefgh", "job-abcdefgh\0"]
)
def test_no_job_id_leaves_the_store(store: Store, job_id: str) -> None:
    with pytest.raises(SpecError, match="not of the form NAME-xxxxxxxx"):
        store.job(job_id)


def test_unknown_job_says_how_to_see_the_known_ones(store: Store) -> None:
    with pytest.raises(NotFound, match="no job gone-abcdefgh; `jupyter hyperpod list` shows"):
        store.job("gone-abcdefgh")


def test_a_store_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError, match=r"other users may write in the store .*, mode 0777.*: run `chmod go-w "):
        Store(tmp_path).prepare()
    tmp_path.chmod(0o755)
    Store(tmp_path).prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_store_of_another_user_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "theirs").prepare()
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o777 == 0o700:
            path.chmod(0o711)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            Store(tmp_path / "theirs").prepare()
        except StoreError as error:
            os._exit(0 if "belongs to root; take a store of your own" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_name_with_dots_never_reaches_the_disk(store: Store) -> None:
    before = sorted(store.root.parent.rglob("*"))
    with pytest.raises(SpecError, match="job name '../../evil' is not allowed"):
        store.create_job(JobSpec(name="../../evil", cell_digest="0" * 64))
    assert sorted(store.root.parent.rglob("*")) == before


def test_a_cell_of_100_mb_is_refused_with_advice(store: Store) -> None:
    with pytest.raises(
        SpecError, match=r"the cell is 95 MiB; the limit is 16 MiB: put data in a file on shared storage"
    ):
        store.put_cell("#" * 100_000_000)
    assert list(store.cells.iterdir()) == []


def test_a_cell_with_half_a_character_is_refused(store: Store) -> None:
    with pytest.raises(SpecError, match="cannot be stored as UTF-8"):
        store.put_cell("x = '\ud800'")


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_a_cell_comes_back_to_the_letter(tmp_path_factory: pytest.TempPathFactory, source: str) -> None:
    store = Store(tmp_path_factory.getbasetemp() / "cells").prepare()
    assert store.cell(store.put_cell(source)) == source
    assert store.cell(store.put_cell("a\r\nb\rc\n")) == "a\r\nb\rc\n"


@pytest.mark.parametrize("digest", ["../jobs", "f" * 64, "", "nope"])
def test_unknown_cells(store: Store, digest: str) -> None:
    with pytest.raises(NotFound, match="no cell with digest"):
        store.cell(digest)


def test_a_damaged_specification_is_an_error_of_ours(store: Store) -> None:
    job = store.create_job(make_spec(store))
    for content in (b"{", b"[]", b"\xff", b'{"name": "a"}'):
        (job.path / "spec.json").write_bytes(content)
        with pytest.raises(SpecError):
            job.spec()
    (job.path / "spec.json").unlink()
    with pytest.raises(StoreError, match=r"cannot read .*spec.json: No such file"):
        job.spec()


def test_a_full_disk_leaves_no_half_made_job(store: Store) -> None:
    digest = make_spec(store).cell_digest
    code = f"""
store = Store(here)
for action in (lambda: store.create_job(JobSpec(name="job", cell_digest="{digest}")), lambda: store.put_cell("b")):
    try:
        action()
    except StoreError as error:
        print(error)
"""
    job, cell = full_disk.run(code, store.root, 0)
    assert re.search(r"cannot write .*/spec.json: File too large", job)
    assert re.search(r"cannot write .*/cells/\w+: File too large", cell)
    assert list(store.jobs.iterdir()) == []
    assert [path.name for path in store.cells.iterdir()] == [digest]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    write_private(tmp_path / "file", b"old")
    code = """
try:
    write_private(here / "file", b"new")
except StoreError as error:
    print(error)
"""
    assert len(full_disk.run(code, tmp_path, 0)) == 1
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_store_that_cannot_be_made_says_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot create .*file.*"):
        Store(tmp_path / "file" / "store").prepare()


def test_job_ids_of_a_store_that_does_not_exist(tmp_path: Path) -> None:
    assert Store(tmp_path / "nowhere").job_ids() == []


def test_jobs_are_listed_newest_first_whatever_happens_in_them(store: Store) -> None:
    jobs = []
    for at in range(3):
        jobs.append(store.create_job(make_spec(store)))
        os.utime(jobs[-1].path / "spec.json", (at, at))
    (jobs[0].path / "coordinator.json").write_text("{}")
    assert store.job_ids() == [job.id for job in reversed(jobs)]
    (jobs[1].path / "spec.json").unlink()
    assert sorted(store.job_ids()) == sorted(job.id for job in jobs)


def test_a_job_is_looked_at_once_however_often_jobs_are_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look may be a question to a server of files; a Jupyter server lists jobs three times a second."""
    looked: list[str] = []
    stat_of = os.stat

    def counted(path: Any, **named: Any) -> os.stat_result:
        looked.append(Path(path).parent.name if str(path).endswith("spec.json") else "")
        return stat_of(path, **named)

    first, second = store.create_job(make_spec(store)), store.create_job(make_spec(store))
    assert set(store.job_ids()) == {first.id, second.id}
    monkeypatch.setattr(os, "stat", counted)
    third = store.create_job(make_spec(store))
    os.utime(third.path / "spec.json", (2e9, 2e9))
    store.remove_job(first.id)
    for _ in range(3):
        assert store.job_ids() == [third.id, second.id]
    assert list(filter(None, looked)) == [third.id]


def test_half_made_jobs_and_stray_files_are_not_jobs(store: Store) -> None:
    (store.jobs / ".new-abcdefgh").mkdir()
    (store.jobs / "notes.txt").write_text("mine")
    job = store.create_job(make_spec(store))
    assert store.job_ids() == [job.id]


def test_the_default_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JUPYTER_HYPERPOD_STORE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local/state/jupyter_hyperpod"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_root() == Path("/state/jupyter_hyperpod")
    monkeypatch.setenv("JUPYTER_HYPERPOD_STORE", "/mine")
    assert default_root() == Path("/mine")


MOUNTS = {"shared": "/srv/shared", "odd": "/srv/x/../y/"}


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("shared://corpus/a.bin", "/srv/shared/corpus/a.bin"),
        ("shared://a/../b", "/srv/shared/b"),
        ("shared://", "/srv/shared"),
        ("odd://a", "/srv/y/a"),
        ("/plain/path", "/plain/path"),
        ("file:///plain/path", "/plain/path"),
        ("s3://bucket/key", "s3://bucket/key"),
    ],
)
def test_addresses_of_mounts(url: str, path: str) -> None:
    assert resolve_url(url, MOUNTS) == path


@pytest.mark.parametrize(
    "url", ["shared://../secret", "shared:///etc/passwd", "shared://a/../../b", "shared://../shared2/x"]
)
def test_no_address_leaves_its_mount(url: str) -> None:
    with pytest.raises(SpecError, match="leaves its mount 'shared'"):
        resolve_url(url, MOUNTS)


@given(st.text(alphabet="./ab\0~", max_size=20))
def test_no_address_leaves_its_bucket(rest: str) -> None:
    try:
        path = resolve_url(f"data://{rest}", {"data": "s3://bucket/models"})
    except SpecError:
        return
    assert f"{path}/".startswith("s3://bucket/models/")


def test_unknown_mounts_are_answered_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="no mount named 'data'; known mounts: odd, shared"):
        resolve_url("data://x", MOUNTS)


@given(st.text(alphabet="./ab\0~", max_size=20))
def test_whatever_is_asked_for_lies_under_the_mount(rest: str) -> None:
    try:
        path = resolve_url(f"shared://{rest}", MOUNTS)
    except SpecError:
        return
    assert path == "/srv/shared" or path.startswith("/srv/shared/")
    assert ".." not in path.split("/")
    assert "\0" not in path
