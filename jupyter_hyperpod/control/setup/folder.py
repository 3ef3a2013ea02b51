"""Writes a folder of files that a person may have changed: what is there already is never overwritten."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...core.errors import SpecError, StoreError
from ...core.units import few


def write_folder(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that are not there yet and return their names; one that is there has to be the same.

    Raises SpecError where one differs, before anything is written, and StoreError where it cannot be written.
    """
    try:
        known = {name: (folder / name).read_text() for name in files if os.path.lexists(folder / name)}
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read what is in {folder}: {getattr(error, 'strerror', None) or error}") from None
    if other := [name for name, text in known.items() if text != files[name]]:
        raise SpecError(f"{folder} has other files already: {few(other)}; remove them, or name another folder with -o")
    new = [name for name in files if name not in known]
    for name in new:
        _write(folder / name, files[name])
    return new


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "x") as file:
            file.write(text)
        os.rename(beside, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
