"""Gives any file as a path of this node, for libraries that open paths: pyarrow, datasets, pandas, numpy, h5py.

<block cache>/files/<digest>/<name>    a file of an object store, whole; the digest is of its address and version

All processes of a node share them. In a job the first member records the version, and no member reads another one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from ..core.errors import NotFound, SpecError, StoreError
from ..mounts import remote, repository
from ..mounts.block_cache import BlockCache
from ..mounts.table import Mounts, known_mounts, resolve_url
from ..storage.source_record import SourceRecord
from ..system.locks import one_at_a_time
from . import hub

FOLDER = "files"
KEPT_S = 7 * 86400.0  # a file that nobody has opened for so long is removed when another one is fetched
WAIT_S = 3600.0


def local_path(address: str | os.PathLike[str]) -> str:
    """The path, on this node, of one file: a path, ``shared://…``, ``hf://…``, or a URL such as ``s3://bucket/name``.

    A file of an object store is fetched whole, once per node. Raises SpecError for a folder or an unknown mount,
    NotFound where there is no such file, and StoreError where it cannot be fetched, or has changed since another
    member of the job has read it.
    """
    text = os.fspath(address)
    if hub.is_hub(text):
        return hub.hub_path(text)
    mounts = known_mounts()
    found = repository.local(resolve_url(text, mounts), mounts)
    if remote.is_remote(found):
        return _fetched(found, mounts)
    if not os.path.exists(found):
        raise NotFound(f"{text}: there is no file {found}")
    return found


def _fetched(url: str, mounts: Mounts) -> str:
    """The path of a whole copy of the object, of the version that the job reads."""
    found = _version(url, mounts)
    job = os.environ.get(hub.JOB_VARIABLE)
    version = SourceRecord(Path(job)).of(url, found.encode()).decode() if job else found
    files = BlockCache().root / FOLDER
    folder = files / hashlib.sha256(f"{url}\0{version}".encode()).hexdigest()[:40]
    path = folder / (os.path.basename(url) or "file")
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with one_at_a_time(folder / ".lock", f"{url} is being fetched by another process", WAIT_S):
        if not path.exists():
            if found != version:
                raise StoreError(
                    f"{url} has changed since the job began to read it: it is {found}, expected {version}; give new "
                    "data a new name"
                )
            _remove_old(files, folder)
            _fetch(url, mounts, version, path)
    with suppress(OSError):
        os.utime(path)
    return str(path)


def _version(url: str, mounts: Mounts) -> str:
    system, inside = remote.file_system(url, mounts.specs)
    with remote.errors("read", url):
        about = system.info(inside)
    if about.get("type") == "directory":
        raise SpecError(f"{url} is a folder; expected one file: call hp.local_path for each file of it")
    return f"{remote.identity(about)} ({about.get('size')} bytes)".lstrip()


def _fetch(url: str, mounts: Mounts, version: str, path: Path) -> None:
    """Bring the object to `path`, if it is still of that version. It appears by a rename, so it is whole or absent."""
    temporary = path.with_name(f".{secrets.token_hex(6)}")
    system, inside = remote.file_system(url, mounts.specs)
    try:
        with remote.errors("read", url):
            system.get_file(inside, str(temporary))
        size = os.path.getsize(temporary)
        if (found := _version(url, mounts)) != version or f"({size} bytes)" not in found:
            raise StoreError(f"{url} was changed while it was read: {size} bytes came, it is {found}; try again")
        os.chmod(temporary, 0o400)
        os.rename(temporary, path)
    except OSError as error:
        raise StoreError(f"{url} cannot be kept at {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_old(files: Path, but: Path) -> None:
    """Remove what nobody has opened for long. Processes that have a file open, or mapped, keep it."""
    for folder in files.iterdir():
        times = [max(part.stat().st_atime, part.stat().st_mtime) for part in folder.iterdir()]
        if folder != but and times and time.time() - max(times) > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)
