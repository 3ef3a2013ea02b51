"""Tiny wheels that tests build, and install without any network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path


def build(folder: Path, name: str, version: str, files: Mapping[str, str] | None = None) -> Path:
    """A pure wheel whose only module has its version, unless ``files`` say otherwise."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    content = {f"{module}.py": f"__version__ = {version!r}\n"} if files is None else dict(files)
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def unpack(folder: Path, name: str, version: str, files: Mapping[str, str] | None = None, origin: str = "") -> Path:
    """Install such a wheel into a folder as an installer does; ``origin`` becomes its direct_url.json."""
    with zipfile.ZipFile(build(folder.parent / "wheels", name, version, files)) as archive:
        archive.extractall(folder)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    (info / "INSTALLER").write_text("tests\n")
    if origin:
        (info / "direct_url.json").write_text(origin)
    return info
