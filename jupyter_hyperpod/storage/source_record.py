"""What the first member of a job found, for good: sources of modules that it imports, and commits of the Hub."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import StoreError
from .store import private_directory, write_private

if TYPE_CHECKING:
    from .apart.head_files import HeadFiles

FOLDER = "sources"
_NAME = 40  # characters of a file's name that are kept, for people who look


class SourceRecord:
    """The sources in the directory of one job."""

    def __init__(self, job: Path) -> None:
        self._folder = job / FOLDER

    def of(self, path: str, found: bytes) -> bytes:
        """The recorded bytes of the file at ``path``; ``found``, which is now recorded, where there are none.

        Of members that record a file at the same time, one wins. Raises StoreError.
        """
        if (known := self.known(path)) is not None:
            return known
        if (head := self._head()) is not None:
            found = head.record(path, found)  # of the members of all pods, one wins
        kept = self._file(path)
        private_directory(self._folder)
        mine = kept.with_name(f".{kept.name}.{secrets.token_hex(4)}")
        write_private(mine, found)
        try:
            os.link(mine, kept)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(mine, kept)
        finally:
            mine.unlink(missing_ok=True)
        return kept.read_bytes()

    def take(self, earlier: Path) -> None:
        """Record all that an earlier job has recorded. Raises StoreError."""
        folder = earlier / FOLDER
        if not earlier.is_dir():
            raise StoreError(f"{earlier}, from which sources are copied, was deleted meanwhile; submit again")
        try:
            names = os.listdir(folder) if folder.is_dir() else []
            for name in (name for name in names if not name.startswith(".")):
                with suppress(FileNotFoundError):  # what a member was just writing under another name
                    content = (folder / name).read_bytes()
                    write_private(private_directory(self._folder) / name, content)
        except OSError as error:
            raise StoreError(f"cannot copy {folder}: {error}") from error

    def known(self, path: str) -> bytes | None:
        """What is recorded of ``path``, or None."""
        with suppress(FileNotFoundError):
            return self._file(path).read_bytes()
        head = self._head()
        return None if head is None else head.recorded(path)

    def _head(self) -> HeadFiles | None:
        """Where the record is, if this store is that of one pod; None where it is here."""
        from .apart.head_files import of_job  # which needs this module's own imports

        return of_job(self._folder.parent)

    def _file(self, path: str) -> Path:
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
        name = re.sub(r"[^\w.-]", "_", os.path.basename(path), flags=re.ASCII)[-_NAME:]
        return self._folder / f"{digest}-{name}"
