"""The packages that an interpreter imports: name, version, a digest of their files, and where they came from.

The digest is of the list of files that a wheel brought (RECORD), without the lines that an installer adds or that name
a place. So pip, uv and another virtual environment give the same one for the same wheel. It costs a few milliseconds
where a file of an earlier time knows it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import StoreError
from ..store import write_private

MOST = 5000
MOST_BYTES = 32 << 20  # of one RECORD
MOST_CACHED = 20_000
_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info")
_BY_INSTALLER = ("RECORD", "RECORD.jws", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One package. ``content`` "" means: not known. ``origin`` is "" for an index; else a URL, or a folder."""

    version: str
    content: str = ""
    origin: str = ""

    def to_json(self) -> list[str]:
        """A short JSON-ready list; inverse of `from_json`."""
        return [self.version, self.content, self.origin]

    @classmethod
    def from_json(cls, record: Any) -> Distribution:
        """Build from `to_json`, or from a version alone, which older jobs have."""
        return cls(*map(str, record[:3])) if isinstance(record, list) else cls(str(record))


def normal(name: str) -> str:
    """A package's name as all installers compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(path: Sequence[str], cache: RecordCache | None = None, budget_s: float = 60.0) -> dict[str, Distribution]:
    """The packages in the folders of an import path. Digests are taken for ``budget_s`` at most; ``cache`` knows more.

    Without a cache, names and versions come from the names of the folders alone.
    """
    end_s = time.monotonic() + budget_s
    found: dict[str, Distribution] = {}
    for name, version, info in _infos(path):
        if cache is None:
            found[name] = Distribution(version)
        else:
            found[name] = Distribution(version, *cache.look_up(info, time.monotonic() < end_s))
    if cache is not None:
        cache.keep()
    return dict(sorted(found.items()))


def _infos(path: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Name, version and folder of metadata of each package; the first one on the path is imported, and here alone."""
    seen: set[str] = set()
    for folder in path:
        entries: list[str] = []
        with suppress(OSError):
            entries = sorted(os.listdir(folder or "."))
        for entry in entries:
            if (named := _INFO.fullmatch(entry)) and (name := normal(named["name"])) not in seen and len(seen) < MOST:
                seen.add(name)
                yield name, named["version"], os.path.join(folder, entry)


def info_of(folder: Path, name: str) -> str:
    """The folder of metadata of a package that lies in ``folder``; "" where it does not."""
    return next((info for other, _, info in _infos([str(folder)]) if other == name), "")


class RecordCache:
    """Digests of packages by the time and size of their RECORD, in a private file that may be lost at any time."""

    def __init__(self, path: Path | None) -> None:
        """``path`` None: nothing is kept."""
        self._path = path
        self._changed = False
        self._known: dict[str, list[Any]] = {}
        if path is not None:
            with suppress(OSError, ValueError):
                known = json.loads(path.read_bytes())
                self._known = known if isinstance(known, dict) else {}

    def look_up(self, info: str, take_time: bool) -> tuple[str, str]:
        """The digest and the origin of the package with this folder of metadata; "" where that would take time."""
        record = os.path.join(info, "RECORD")
        try:
            about = os.stat(record)
        except OSError:
            return "", ""  # of a system's own package manager
        stamp = [about.st_mtime_ns, about.st_size, about.st_ino]
        known = self._known.get(info)
        if isinstance(known, list) and len(known) == 5 and known[:3] == stamp:
            return str(known[3]), str(known[4])
        if not take_time or about.st_size > MOST_BYTES:
            return "", ""
        try:
            content = digest_of_files(Path(record).read_bytes(), os.path.basename(info))
        except OSError:
            return "", ""
        origin = _origin(info)
        self._known[info] = [*stamp, content, origin]
        self._changed = True
        return content, origin

    def keep(self) -> None:
        """Write what is new, where that is possible."""
        if self._path is None or not self._changed:
            return
        newest = list(self._known.items())[-MOST_CACHED:]
        with suppress(StoreError):
            write_private(self._path, json.dumps(dict(newest)).encode())
        self._changed = False


def digest_of_files(record: bytes, info: str) -> str:
    """A digest of what a wheel brought, from its RECORD: neither of what an installer added, nor of where it is."""
    own = tuple(f"{info}/{name},".encode() for name in _BY_INSTALLER)
    lines = record.replace(b"\r\n", b"\n").split(b"\n")
    kept = [line for line in lines if b"__pycache__/" not in line and not line.startswith((b"../", b"/", *own))]
    return hashlib.sha256(b"\n".join(sorted(kept))).hexdigest()[:32]


def _origin(info: str) -> str:
    """Where a package came from, by its direct_url.json; "" for an index."""
    try:
        with open(os.path.join(info, "direct_url.json"), "rb") as file:
            return origin_of(json.loads(file.read(1 << 16)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


def origin_of(record: Mapping[str, Any]) -> str:
    """The address in a direct_url.json as a requirement would have it, without passwords."""
    url = public(str(record["url"]))
    if "vcs_info" in record:
        vcs = record["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    if "dir_info" in record:
        return f"{'editable' if record['dir_info'].get('editable') else 'folder'} {url.removeprefix('file://')}"
    hashes = record.get("archive_info", {}).get("hashes") or {}
    return f"{url}#sha256={hashes['sha256']}" if "sha256" in hashes else url


def public(url: str) -> str:
    """A URL without user name, password, query and fragment."""
    return _PASSWORD.sub("", url).partition("?")[0].partition("#")[0]
