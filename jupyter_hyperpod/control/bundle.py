"""The runtime as one zip for ``PYTHONPATH``, so that a server and its workers can never differ in version.

The zip holds what a node needs and nothing of Jupyter. The same sources always give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from ..storage.store import private_directory, write_private

PACKAGES = ("core", "policy", "storage", "loader", "health", "recipes", "runtime")
_ROOT = Path(__file__).resolve().parents[1]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold


def runtime_zip() -> bytes:
    """Return the zip: this package's root module and `PACKAGES`, deterministic to the byte."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in _sources():
            entry = zipfile.ZipInfo(path.relative_to(_ROOT.parent).as_posix(), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def write_runtime_zip(directory: Path) -> Path:
    """Write the zip to `directory` under a name made of its digest and return its path. Raises StoreError."""
    content = runtime_zip()
    path = private_directory(directory) / f"runtime-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        write_private(path, content)
    return path


def _sources() -> list[Path]:
    sources = [_ROOT / "__init__.py"]
    for package in PACKAGES:
        sources += sorted(path for path in (_ROOT / package).rglob("*") if path.suffix in (".py", ".toml"))
    return sources
