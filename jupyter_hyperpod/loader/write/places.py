"""Where models are written: a directory or a bucket. What is written is seen when it is published, not before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from ...core.errors import LoaderError, SpecError
from ..read.http_connection import Cancel
from ..read.local import path_of
from ..read.sources import Counters, Door, public_name, scheme_of

Views = Sequence[memoryview]


class Unsure(LoaderError):
    """It failed, and may have been done all the same."""


class Fleeting(Unsure):
    """It was done, but may not survive a power failure."""


class Upload(Protocol):
    """One file that is being written. `write` may be called by many threads; the other methods by one."""

    def write(self, number: int, offset: int, views: Views, cancel: Cancel) -> None:
        """Write part `number` (from 0 on), which begins at byte `offset`. Raises LoaderError and Cancelled."""

    def finish(self) -> None:
        """Everything is written: have it survive a power failure. Raises LoaderError."""

    def publish(self) -> None:
        """Make the file visible, in one step. Raises LoaderError."""

    def abort(self) -> None:
        """Leave nothing of it behind. What has been published stays: it may have taken the place of another file."""


class Place(Protocol):
    """A directory of any kind. Methods raise LoaderError: Unsure where what they do may have been done."""

    def url(self, name: str) -> str:
        """Return where the file `name` is or will be."""

    def begin(self, name: str, size: int) -> Upload:
        """Prepare to write a file of `size` bytes."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file, in one step."""

    def has(self, name: str) -> bool | None:
        """Whether there is such a file; None where that may not be known."""

    def comes_back(self, name: str) -> bool:
        """Whether such a file may be there again after it was removed."""

    def remove(self, name: str) -> None:
        """Remove a file, or do nothing where there is none."""


def place_of(url: str, door: Door, file: bool = False) -> tuple[Place, str]:
    """Return a directory and the name of a file in it: "" where `url` is the directory. Raises SpecError.

    It is a file where it ends in ``.safetensors``, or with `file`.
    """
    url = door.shared.target(url)
    file = file or url.endswith(".safetensors")
    scheme = scheme_of(url)
    if scheme == "file":
        path = path_of(url)
        directory, name = os.path.split(path) if file else (path, "")
        return FilePlace(directory or ".", door), name
    if scheme != "s3":
        raise SpecError(f"{public_name(url)}: models are written to s3:// and to files, not to {scheme}://")
    from .bucket import Bucket

    directory, _, name = url.rpartition("/") if file else (url.rstrip("/"), "", "")
    return Bucket(directory, door), name


class FilePlace:
    """A directory of this machine; it is made where it is not there yet."""

    def __init__(self, directory: str, door: Door) -> None:
        self._directory = directory
        self._door = door
        self._made = False

    def url(self, name: str) -> str:
        """See Place."""
        return os.path.join(self._directory, name)

    def begin(self, name: str, size: int) -> FileUpload:
        """See Place."""
        self._make()
        return FileUpload(self.url(name), size, self._door.counters)

    def put(self, name: str, content: bytes) -> None:
        """See Place."""
        upload = self.begin(name, len(content))
        try:
            upload.write(0, 0, [memoryview(content)], Cancel())
            upload.finish()
            upload.publish()
        except BaseException:
            upload.abort()
            raise

    def has(self, name: str) -> bool:
        """See Place."""
        return os.path.lexists(self.url(name))

    def comes_back(self, name: str) -> bool:
        """See Place."""
        return self._door.shared.comes_back(self.url(name))

    def remove(self, name: str) -> None:
        """See Place."""
        with _told(self.url(name), "that it can be removed"), suppress(FileNotFoundError):
            os.unlink(self.url(name))

    def _make(self) -> None:
        if not self._made:
            with _told(self._directory, "a directory that can be written to"):
                os.makedirs(self._directory, exist_ok=True)
            self._made = True


class FileUpload:
    """A file beside its final place, renamed when it is whole."""

    def __init__(self, path: str, size: int, counters: Counters) -> None:
        self._path = path
        self._size = size
        self._counters = counters
        directory, name = os.path.split(path)
        self._temporary = os.path.join(directory, f".{name}.{secrets.token_hex(4)}.tmp")
        self._descriptor = -1
        with _told(path, "a directory that can be written to"):
            self._descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if size:
                with self._with_room():  # a disk without room says so now, not after the first half
                    os.posix_fallocate(self._descriptor, 0, size)
        except BaseException:
            self.abort()
            raise

    def write(self, number: int, offset: int, views: Views, cancel: Cancel) -> None:
        """See Upload."""
        for view in views:
            done = 0
            while done < len(view):
                cancel.check()
                with self._with_room():
                    done += os.pwrite(self._descriptor, view[done:], offset + done)
            offset += len(view)
            self._counters.add(fetched=len(view))

    def finish(self) -> None:
        """See Upload."""
        with self._with_room():
            os.fsync(self._descriptor)
        self._close()

    def publish(self) -> None:
        """See Upload."""
        with _told(self._path, "that it can be replaced"):
            os.replace(self._temporary, self._path)
        with _told(self._path, "that it survives a power failure", Fleeting):
            directory = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def abort(self) -> None:
        """See Upload."""
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            os.unlink(self._temporary)

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    @contextmanager
    def _with_room(self) -> Iterator[None]:
        with _told(self._path, f"room for {self._size} bytes"):
            yield


@contextmanager
def _told(path: str, expected: str, kind: type[LoaderError] = LoaderError) -> Iterator[None]:
    """Turn what the system says into a LoaderError about `path`."""
    try:
        yield
    except OSError as error:
        raise kind(path, error.strerror or str(error), expected) from None
