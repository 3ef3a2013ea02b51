"""Where a secret could show: files of a store, command lines and environments of all processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def files_with(root: Path, secret: str, besides: Path | None = None) -> list[Path]:
    """Files below `root` that hold the secret, and directories or files that bear it in their name."""
    return [path for path in root.rglob("*") if path != besides and (secret in path.name or _holds(path, secret))]


def command_lines_with(secret: str) -> list[int]:
    """Processes that show the secret in `ps`."""
    return [pid for pid in _pids() if secret.encode() in _read(Path(f"/proc/{pid}/cmdline"))]


def environments_with(secret: str) -> list[int]:
    """Processes that were started with the secret in their environment."""
    return [pid for pid in _pids() if secret.encode() in _read(Path(f"/proc/{pid}/environ"))]


def _holds(path: Path, secret: str) -> bool:
    return path.is_file() and not path.is_symlink() and secret.encode() in _read(path)


def _pids() -> Iterator[int]:
    yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""
