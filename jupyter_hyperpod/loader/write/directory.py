"""Writes models to a directory of this machine: each file under a temporary name, renamed once complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...core.errors import LoaderError
from ..read.http_connection import Cancel
from ..read.source import Counters
from ..read.sources import Opener
from .destination import Destination, NotDurable, Upload, Views


class LocalDirectory(Destination):
    """A directory of this machine; created where missing."""

    def __init__(self, directory: str, opener: Opener) -> None:
        self._directory = directory
        self._opener = opener

    def url(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def begin(self, name: str, size: int) -> FileUpload:
        with _errors_about(self._directory, "a directory that can be written to"):
            os.makedirs(self._directory, exist_ok=True)
        return FileUpload(self.url(name), size, self._opener.counters)

    def put(self, name: str, content: bytes) -> None:
        upload = self.begin(name, len(content))
        try:
            upload.write(0, 0, [memoryview(content)], Cancel())
            upload.finish()
            upload.publish()
        except BaseException:
            upload.abort()
            raise

    def has(self, name: str) -> bool:
        return os.path.lexists(self.url(name))

    def comes_back(self, name: str) -> bool:
        return self._opener.shared.comes_back(self.url(name))

    def remove(self, name: str) -> None:
        with _errors_about(self.url(name), "that it can be removed"), suppress(FileNotFoundError):
            os.unlink(self.url(name))


class FileUpload(Upload):
    """A file under a temporary name beside its final place, renamed once complete."""

    def __init__(self, path: str, size: int, counters: Counters) -> None:
        self._path = path
        self._size = size
        self._counters = counters
        directory, name = os.path.split(path)
        self._temporary = os.path.join(directory, f".{name}.{secrets.token_hex(4)}.tmp")
        self._descriptor = -1
        with _errors_about(path, "a directory that can be written to"):
            self._descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if size:
                with self._with_room():  # reserves the space now: a full disk fails here, not halfway
                    os.posix_fallocate(self._descriptor, 0, size)
        except BaseException:
            self.abort()
            raise

    def write(self, number: int, offset: int, views: Views, cancel: Cancel) -> None:
        for view in views:
            done = 0
            while done < len(view):
                cancel.check()
                with self._with_room():
                    done += os.pwrite(self._descriptor, view[done:], offset + done)
            offset += len(view)
            self._counters.add(fetched=len(view))

    def finish(self) -> None:
        with self._with_room():
            os.fsync(self._descriptor)
        self._close()

    def publish(self) -> None:
        with _errors_about(self._path, "that it can be replaced"):
            os.replace(self._temporary, self._path)
        with _errors_about(self._path, "that it survives a power failure", NotDurable):
            directory = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def abort(self) -> None:
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
        with _errors_about(self._path, f"room for {self._size} bytes"):
            yield


@contextmanager
def _errors_about(path: str, expected: str, kind: type[LoaderError] = LoaderError) -> Iterator[None]:
    """Turn an error of the system into a LoaderError about `path`."""
    try:
        yield
    except OSError as error:
        raise kind(path, error.strerror or str(error), expected) from None
