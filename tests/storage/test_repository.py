"""An object store behind the files of a mount: states, import on first read, export, and who wins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile

from jupyter_hyperpod.core.errors import Conflict, NotFound, SpecError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import repository, table
from jupyter_hyperpod.mounts.repository import Repository
from jupyter_hyperpod.mounts.table import known_mounts, resolve_url
from jupyter_hyperpod.storage.store import Store

Objects = fsspec.AbstractFileSystem


@pytest.fixture
def objects() -> Iterator[Objects]:
    """fsspec's object store in memory, empty."""
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


@pytest.fixture
def behind(store: Store, tmp_path: Path, objects: Objects) -> Repository:
    objects.pipe({"/bucket/p/a.bin": b"alpha", "/bucket/p/sub/b.bin": b"beta", "/bucket/other": b"no"})
    path = str(tmp_path / "fs")
    spec = MountSpec("fs", path, path, repository="memory://bucket/p")
    table.add(store, spec)
    table.make_root(spec, path)
    return Repository(spec, path, table.table(store))


def states(found: Repository) -> dict[str, str]:
    return {name: state for name, (state, _) in found.states().items()}


def test_names_come_first_and_content_when_it_is_read(behind: Repository) -> None:
    assert behind.refresh() == 2
    assert states(behind) == {"a.bin": "released", "sub/b.bin": "released"}
    assert not Path(behind.root, "a.bin").exists()
    path = resolve_url("shared://fs/sub/b.bin", known_mounts())
    assert Path(repository.local(path, known_mounts())).read_bytes() == b"beta"
    assert states(behind) == {"a.bin": "released", "sub/b.bin": "imported"}
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_what_was_never_listed_is_found_too_and_what_is_nowhere_is_missing(behind: Repository) -> None:
    known = known_mounts()
    assert Path(repository.local(f"{behind.root}/a.bin", known)).read_bytes() == b"alpha"
    assert not Path(repository.local(f"{behind.root}/nothing", known)).exists()
    with pytest.raises(NotFound, match="memory://bucket/p/nothing"):
        behind.fetch("nothing")


def test_changes_go_back_on_command(behind: Repository, objects: Objects) -> None:
    path = Path(behind.fetch("a.bin"))
    path.write_bytes(b"changed")
    Path(behind.root, "new").write_bytes(b"new")
    assert states(behind) == {"a.bin": "dirty", "new": "dirty"}
    for name in behind.select([], ("dirty",)):
        behind.export(name)
    assert states(behind) == {"a.bin": "exported", "new": "exported"}
    assert (objects.cat("/bucket/p/a.bin"), objects.cat("/bucket/p/new")) == (b"changed", b"new")


def test_released_content_comes_back(behind: Repository) -> None:
    path = Path(behind.fetch("a.bin"))
    behind.release("a.bin")
    assert (path.exists(), states(behind)) == (False, {"a.bin": "released"})
    assert Path(behind.fetch("a.bin")).read_bytes() == b"alpha"
    path.write_bytes(b"mine")
    with pytest.raises(Conflict, match="a.bin is dirty"):
        behind.release("a.bin")
    assert path.read_bytes() == b"mine"


def test_both_sides_changed_is_a_conflict_that_nobody_loses(behind: Repository, objects: Objects) -> None:
    path = Path(behind.fetch("a.bin"))
    objects.pipe("/bucket/p/a.bin", b"theirs!")
    behind.refresh()
    assert states(behind)["a.bin"] == "changed"
    path.write_bytes(b"mine")
    assert states(behind)["a.bin"] == "conflict"
    assert Path(behind.fetch("a.bin")).read_bytes() == b"mine"
    with pytest.raises(Conflict, match="--force"):
        behind.export("a.bin")
    assert objects.cat("/bucket/p/a.bin") == b"theirs!"
    behind.export("a.bin", force=True)
    assert objects.cat("/bucket/p/a.bin") == b"mine"


def test_a_newer_object_is_imported_over_an_unchanged_file(behind: Repository, objects: Objects) -> None:
    behind.fetch("a.bin")
    objects.pipe("/bucket/p/a.bin", b"newer one")
    behind.refresh()
    assert Path(behind.fetch("a.bin")).read_bytes() == b"newer one"
    assert states(behind)["a.bin"] == "imported"
    objects.rm("/bucket/p/a.bin")
    behind.refresh()
    assert states(behind)["a.bin"] == "dirty"


def test_objects_that_stand_for_directories_are_no_files(behind: Repository, objects: Objects) -> None:
    for path in ("/bucket/p/", "/bucket/p/sub/", "/bucket/p/none/"):
        objects.store[path] = MemoryFile(objects, path)
    assert behind.refresh() == 2
    assert states(behind) == {"a.bin": "released", "sub/b.bin": "released"}


@pytest.mark.parametrize("name", ["../out", "sub/../../out", ".hyperpod/objects/x", ""])
def test_names_cannot_lead_out(behind: Repository, name: str) -> None:
    with pytest.raises(SpecError, match="is no file of mount"):
        behind.fetch(name)


def test_a_link_cannot_lead_an_import_out(behind: Repository, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    Path(behind.root, "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(SpecError, match="leads out of mount"):
        behind.fetch("sub/b.bin")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_torn_record_is_no_record(behind: Repository) -> None:
    path = Path(behind.fetch("a.bin"))
    for record in Path(behind.root, repository.OWN).rglob("*.json"):
        record.write_text('{"path": "a.b')
    assert states(behind)["a.bin"] == "dirty"
    assert Path(behind.fetch("a.bin")) == path
