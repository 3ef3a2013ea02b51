"""The interface of all sources of bytes (`Source`), and the resources that the sources of one load share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...mounts.table import Mounts
from .http_connection import Cancel
from .mount_source import Shared

PREFIX_BYTES = 65_536  # read when an object is opened: the header of most models


@dataclass(frozen=True)
class Options:
    """How objects are reached. A value of None comes from the environment, for S3 through botocore's session.

    `anonymous` reads S3 without signing; `headers` are sent with http(s) requests, to the URL's own host only. `mounts`
    resolve ``shared://``, by default this process's mounts.
    """

    endpoint_url: str | None = None
    region: str | None = None
    anonymous: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    timeout_s: float = 10.0
    attempts: int = 8
    mounts: Mounts | None = None


def merged(options: Options | None, endpoint_url: str | None) -> Options:
    """Return the options, with `endpoint_url` where it is given."""
    options = options or Options()
    return options if endpoint_url is None else replace(options, endpoint_url=endpoint_url)


class Counters:
    """Counts the bytes and requests of a load so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fetched = 0
        self.retries = 0
        self.throttled = 0

    def add(self, fetched: int = 0, retries: int = 0, throttled: int = 0) -> None:
        with self._lock:
            self.fetched += fetched
            self.retries += retries
            self.throttled += throttled


class Source(Protocol):
    """An object of `size` bytes that does not change: `etag` identifies its content.

    Methods may be called by many threads at once. They raise LoaderError, and Cancelled when cancelled.
    """

    name: str
    size: int
    etag: str
    prefix: bytes

    def read_into(self, offset: int, view: memoryview, cancel: Cancel) -> None:
        """Fill `view` with the bytes from `offset` on."""

    def read_rows(self, offset: int, length: int, rows: int, stride: int, view: memoryview, cancel: Cancel) -> None:
        """Fill `view` with `rows` pieces of `length` bytes, `stride` apart, the first at `offset`."""
        for row in range(rows):
            self.read_into(offset + row * stride, view[row * length : (row + 1) * length], cancel)

    def close(self) -> None:
        """Release what only this object uses. Raises LoaderError where it has changed since it was opened."""
        return


class LoadResources:
    """The resources that the objects of one load share: options, mounts, connections, credentials, counters.

    `early` connections to each server are made besides the one that reads the first header.
    """

    def __init__(self, options: Options | None = None, early: int = 0) -> None:
        self.options = options or Options()
        self.early = early
        self.counters = Counters()
        self.shared = Shared(self.options.mounts)
        self._made: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value that `make` returned at the first request for `key`."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def close(self) -> None:
        with self._lock:
            for value in self._made.values():
                if hasattr(value, "close"):
                    value.close()


def read_start(source: Source, length: int) -> bytes:
    """Return the first bytes; those that were read when the object was opened are not read again."""
    known = source.prefix[:length]
    content = bytearray(length - len(known))
    if content:
        source.read_into(len(known), memoryview(content), Cancel())
    return known + content
