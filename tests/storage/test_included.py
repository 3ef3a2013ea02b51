"""Folders that a job includes: which files are copied, what is refused, and where they are imported from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import SpecError, StoreError
from jupyter_hyperpod.storage import included


def write(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


def test_sources_are_copied_and_nothing_else(tmp_path: Path) -> None:
    folder = write(tmp_path / "project", "a.py", "pkg/__init__.py", "pkg/deep/b.py", "pkg/words.txt", "notes.md")
    write(folder, ".git/HEAD", ".env", "pkg/__pycache__/b.pyc", "env/pyvenv.cfg", "env/lib/c.py", "x.egg-info/PKG-INFO")
    (folder / "data").symlink_to(tmp_path)
    (folder / "gone.py").symlink_to(tmp_path / "nowhere")
    (folder / "linked.py").symlink_to(folder / "a.py")
    found = included.survey(str(folder))
    assert sorted(found.sizes) == ["a.py", "linked.py", "notes.md", "pkg/__init__.py", "pkg/deep/b.py", "pkg/words.txt"]
    assert found.linked == ("data",) and "not the linked data" in found.sentence
    included.copy([found], tmp_path / "job")
    (root,) = included.import_folders(tmp_path / "job", 1)
    copied = [path for path in Path(root).rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(root)) for path in copied) == sorted(found.sizes)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in copied)


def test_a_package_is_imported_by_its_name_and_sources_in_src(tmp_path: Path) -> None:
    package = write(tmp_path / "mine", "__init__.py", "model.py")
    project = write(tmp_path / "project", "src/theirs/__init__.py", "tool.py")
    included.copy([included.survey(str(package)), included.survey(str(project))], tmp_path / "job")
    first, second, third = map(Path, included.import_folders(tmp_path / "job", 2))
    assert (first / "mine" / "model.py").exists()
    assert (second / "theirs" / "__init__.py").exists() and (third / "tool.py").exists()


def test_what_cannot_be_included_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(folder: Path) -> str:
        with pytest.raises(SpecError) as error:
            included.survey(str(folder))
        return str(error.value)

    assert "is missing; expected a folder" in refusal(tmp_path / "nowhere")
    assert "is a file; expected a folder" in refusal(write(tmp_path, "a.py") / "a.py")
    assert "holds no Python file" in refusal(write(tmp_path / "data", "x.txt"))
    assert "'my-package' cannot be imported by name" in refusal(write(tmp_path / "my-package", "__init__.py"))
    folder = write(tmp_path / "large", "a.py")
    (folder / "weights.bin").write_bytes(bytes(2048))
    monkeypatch.setattr(included, "MAX_BYTES", 1024)
    assert "The largest: weights.bin (2.05 kB)" in refusal(folder)
    monkeypatch.setattr(included, "MAX_FILES", 1)
    assert "more than 1 files" in refusal(folder)


def test_a_file_that_goes_before_it_is_copied(tmp_path: Path) -> None:
    folder = write(tmp_path / "project", "a.py", "b.py")
    found = included.survey(str(folder))
    os.unlink(folder / "b.py")
    with pytest.raises(SpecError, match="b.py cannot be read: No such file or directory; submit again"):
        included.copy([found], tmp_path / "job")


def test_a_node_without_the_folders(tmp_path: Path) -> None:
    assert included.import_folders(tmp_path, 0) == []
    with pytest.raises(StoreError, match="is not on this node"):
        included.import_folders(tmp_path, 1)
