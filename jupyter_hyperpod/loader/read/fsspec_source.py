"""Reads ranges of any other kind of object through fsspec, with one more copy than the other sources."""

from __future__ import annotations

from typing import Any

from ...core.errors import LoaderError, SpecError
from ...core.names import public_name
from .http_connection import Cancel
from .source import PREFIX_BYTES, Counters, Source


class OtherSource(Source):
    """An object that fsspec can read by ranges."""

    def __init__(self, url: str, counters: Counters) -> None:
        import fsspec

        self.name = public_name(url)
        self._counters = counters
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)
            info = self._files.info(self._path)
        except FileNotFoundError:
            raise LoaderError(self.name, "nothing", "an object") from None
        except PermissionError as error:
            raise LoaderError(self.name, f"no permission ({error})", "a readable object") from None
        except (ImportError, ValueError) as error:
            raise SpecError(f"{self.name}: {error}") from None
        if info.get("type") == "directory" or info.get("size") is None:
            raise LoaderError(self.name, "a directory", "an object")
        self.size = int(info["size"])
        self.etag = self._identity(info)
        self.prefix = self._range(0, min(PREFIX_BYTES, self.size))

    def read_into(self, offset: int, view: memoryview, cancel: Cancel) -> None:
        cancel.check()
        view[:] = self._range(offset, offset + len(view))

    def close(self) -> None:
        self._files.invalidate_cache()
        found = self._identity(self._files.info(self._path))
        if found != self.etag:
            raise LoaderError(self.name, found, self.etag, "the object was replaced while it was read: load it again")

    def _range(self, begin: int, end: int) -> bytes:
        try:
            content: bytes = self._files.cat_file(self._path, begin, end)
        except OSError as error:
            raise LoaderError(self.name, f"{error} for bytes {begin}-{end - 1}", "them") from None
        self._counters.add(fetched=len(content))
        if len(content) != end - begin:
            found = f"{len(content)} bytes from {begin} on"
            raise LoaderError(self.name, found, str(end - begin), "the object was truncated while it was read")
        return content

    def _identity(self, info: dict[str, Any]) -> str:
        marks = [info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if info.get(key)]
        return f"{info['size']} bytes, {marks[0]}" if marks else f"{info['size']} bytes"
