"""The digest of what a job's processes run, by which a preloaded interpreter is found or renewed."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path

# what a job's processes may import of this package: an edit elsewhere does not make a preloaded interpreter stale
_SHIPPED = (
    "core", "system", "policy", "storage", "mounts", "loader", "health", "recipes", "runtime", "integrations",
    "serving", "backends",
)  # fmt: skip


def source_digest() -> str:
    """SHA-256 (hex) of this package's source that runs inside jobs, and of when other packages were last installed.

    So neither edited code nor a package that was replaced meanwhile is served stale.
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256(sys.version.encode())
    for folder, changed_ns in installations():
        digest.update(f"{folder}\0{changed_ns}\0".encode())
    shipped = [package / "__init__.py", *(path for part in _SHIPPED for path in sorted((package / part).rglob("*.py")))]
    for path in shipped:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        digest.update(f"{path.relative_to(package)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def installations() -> list[tuple[str, int]]:
    """The folders from which packages are imported, and when an entry came or went there, as with `pip install`."""
    found = {}
    for folder in sys.path:
        if os.path.basename(folder) in ("site-packages", "dist-packages"):
            with suppress(OSError):
                found[folder] = os.stat(folder).st_mtime_ns
    return sorted(found.items())


def same_interpreter(python: str) -> bool:
    """True where `python` is this interpreter in this environment, by this or another of its names there."""
    here, there = (os.path.abspath(path) for path in (sys.executable, python))
    return here == there or (
        os.path.dirname(here) == os.path.dirname(there) and os.path.realpath(here) == os.path.realpath(there)
    )
