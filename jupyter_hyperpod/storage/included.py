"""Copies folders of a person's own sources into a job, so that all its members import them as they were at the submit.

<job>/include/<number>/          one folder: its files, or the package itself where the folder is a package
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import SpecError, StoreError
from ..core.units import format_bytes, plural
from .store import private_directory

FOLDER = "include"
MAX_BYTES, MAX_FILES = 64 * 10**6, 10_000
SKIPPED = frozenset(("venv", "node_modules", "__pycache__"))  # and hidden files and folders
_PACKAGE, _ENVIRONMENT, _SOURCES = "__init__.py", "pyvenv.cfg", "src"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Survey:
    """A folder's files, by their paths below it, and their sizes in bytes; ``linked``: linked folders left out.

    ``package``: the name under which the folder itself is imported, "" where modules and packages lie in it.
    """

    folder: Path
    package: str
    sizes: dict[str, int]
    linked: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.sizes.values())

    @property
    def sentence(self) -> str:
        """What is included, for people."""
        kind = f"package {self.package}" if self.package else str(self.folder)
        text = f"{kind}: {plural(len(self.sizes), 'file')}, {format_bytes(self.size)}"
        left = f"; not the linked {', '.join(self.linked[:_SHOWN])}" if self.linked else ""
        return text + left


def survey(text: str) -> Survey:
    """Look at a folder that is to be included. Raises SpecError where it is none, is too large or cannot be read."""
    folder = Path(os.path.abspath(os.path.expanduser(text)))
    if not folder.is_dir():
        kind = "a file" if folder.exists() else "missing"
        raise SpecError(f"--include {text}: {folder} is {kind}; expected a folder with Python modules or packages")
    sizes: dict[str, int] = {}
    linked: list[str] = []
    try:
        for file, size in _files(folder, linked):
            sizes[file] = size
            if len(sizes) > MAX_FILES:
                raise SpecError(_too_large(folder, f"more than {MAX_FILES:,} files", sizes))
    except OSError as error:
        raise SpecError(f"--include {text}: cannot read {error.filename}: {error.strerror}") from None
    found = Survey(folder, folder.name if (folder / _PACKAGE).exists() else "", sizes, tuple(linked))
    if found.size > MAX_BYTES:
        raise SpecError(_too_large(folder, format_bytes(found.size), sizes))
    if not any(file.endswith(".py") for file in sizes):
        raise SpecError(f"--include {text}: {folder} holds no Python file; data belong on shared storage")
    if found.package and not found.package.isidentifier():
        raise SpecError(f"--include {text}: {folder} is a package, but {found.package!r} cannot be imported by name")
    return found


def copy(found: Sequence[Survey], job: Path) -> None:
    """Copy folders into a job's directory. Raises StoreError, and SpecError for a file that has gone meanwhile."""
    for number, one in enumerate(found):
        root = private_directory(job / FOLDER / str(number)) / one.package
        for name in one.sizes:
            target = root / name
            private_directory(target.parent)
            try:
                content = (one.folder / name).read_bytes()
            except OSError as error:
                raise SpecError(f"{one.folder / name} cannot be read: {error.strerror}; submit again") from None
            try:
                target.write_bytes(content)
                target.chmod(0o600)
            except OSError as error:
                raise StoreError(f"cannot write {target}: {error.strerror}") from error


def copy_again(earlier: Path, job: Path) -> None:
    """Copy what an earlier job includes. Raises StoreError."""
    if (earlier / FOLDER).is_dir():
        try:
            shutil.copytree(earlier / FOLDER, job / FOLDER)
        except OSError as error:
            raise StoreError(f"cannot copy {earlier / FOLDER}: {error}") from error


def import_folders(job: Path, count: int) -> list[str]:
    """The folders that a member of the job imports from, in order. Raises StoreError where one is not there."""
    folders = []
    for number in range(count):
        root = job / FOLDER / str(number)
        if not root.is_dir():
            raise StoreError(f"{root}, which the job includes, is not on this node: is the store shared with it?")
        sources = root / _SOURCES
        folders += [str(sources), str(root)] if sources.is_dir() and not (sources / _PACKAGE).exists() else [str(root)]
    return folders


def top_level(folder: Path) -> list[str]:
    """Names of the modules and packages that lie in a folder."""
    return [path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / _PACKAGE).exists()]


def _files(folder: Path, linked: list[str]) -> Iterator[tuple[str, int]]:
    """Paths below ``folder`` and sizes of its regular files, in order; linked folders are noted, not followed."""
    for where, folders, names in os.walk(folder, onerror=_refuse):
        below = Path(where).relative_to(folder)
        linked += [str(below / name) for name in folders if os.path.islink(os.path.join(where, name))]
        kept = (name for name in folders if name not in SKIPPED and not name.endswith(".egg-info") and name[0] != ".")
        folders[:] = sorted(name for name in kept if not os.path.exists(os.path.join(where, name, _ENVIRONMENT)))
        for name in sorted(names):
            if name.startswith(".") or name.endswith((".pyc", ".pyo")):
                continue
            try:
                found = os.stat(os.path.join(where, name))
            except FileNotFoundError:  # a link that leads nowhere, or a file that has just gone
                continue
            if stat.S_ISREG(found.st_mode):
                yield str(below / name), found.st_size


def _refuse(error: OSError) -> None:
    raise error


def _too_large(folder: Path, found: str, sizes: dict[str, int]) -> str:
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN]
    shown = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in largest)
    return (
        f"{folder} holds {found}; a job includes at most {format_bytes(MAX_BYTES)} in {MAX_FILES:,} files. The "
        f"largest: {shown}. Keep data on shared storage, or include the folder of a package alone"
    )
