"""A file browser's operations stay below the mount, also where another user exchanges directories for links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_hyperpod.mounts import file_operations


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    for place, text in (("mount/a", "ours"), ("outside", "secret")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_text(text)
    return tmp_path / "mount"


def exchange(mount: Path) -> None:
    """Another user of the mount moves the directory away and puts a link to another place there."""
    (mount / "a").rename(mount / "b")
    (mount / "a").symlink_to(mount.parent / "outside")


def test_a_directory_that_is_exchanged_for_a_link_afterwards_is_still_the_same(mount: Path) -> None:
    place = file_operations.within(str(mount), "a/file", True)
    exchange(mount)
    assert Path(place).read_text() == "ours"


@pytest.mark.parametrize("operation", ["read", "write", "remove", "make", "page", "discard"])
def test_a_directory_that_is_exchanged_for_a_link_on_the_way_is_refused(
    mount: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = file_operations._real

    def late(root: str, path: str, follow: bool) -> tuple[str, str]:
        answer = found(root, path, follow)
        if not (mount / "b").exists():
            exchange(mount)
        return answer

    monkeypatch.setattr(file_operations, "_real", late)
    path = {"make": ("a/new",), "page": ("a", "", "10")}.get(operation, ("a/file",))
    with pytest.raises(OSError, match=r"Not a directory|Too many levels|leads out of the mount"):
        file_operations.OPERATIONS[operation](str(mount), *path)
    outside = mount.parent / "outside"
    assert [(one.name, one.read_text()) for one in outside.iterdir()] == [("file", "secret")]


def test_a_thousand_links_hold_few_directories_open(mount: Path) -> None:
    before = len(os.listdir(file_operations.FD_DIRECTORY))
    for number in range(40):
        (mount / f"d{number}").mkdir()
        (mount / f"d{number}" / "file").touch()
        (mount / "a" / f"link{number}").symlink_to(f"../d{number}/file")
    found = file_operations.page(str(mount), "a", "", "100")
    assert len(found["entries"]) == 41  # type: ignore[arg-type]
    assert len(os.listdir(file_operations.FD_DIRECTORY)) <= before + file_operations.MOST_HELD
