"""Opens the right kind of source for each URL, and imports its module at the first use."""

from __future__ import annotations

from contextlib import suppress

from ...core.errors import HyperpodError, LoaderError
from ..urls import scheme_of
from .source import LoadResources, Source, read_start


class Opener(LoadResources):
    """Opens objects: S3 and HTTP(S) with our own HTTP client, files by `preadv`, others through fsspec."""

    def open(self, url: str) -> Source:
        """Open an object; raises LoaderError where it does not exist, or permission is missing."""
        url = self.shared.locate(url)
        scheme = scheme_of(url)
        if scheme == "file":
            from .local import FileSource, path_of

            path = path_of(url)
            self.shared.fetch(path)
            return FileSource(path, self.counters)
        if scheme == "s3":
            from .s3 import S3Source

            return S3Source(url, self)
        if scheme in ("http", "https"):
            from .http import HttpSource

            return HttpSource(url, self)
        from .fsspec_source import OtherSource

        return OtherSource(url, self.counters)

    def read(self, url: str, limit: int) -> tuple[str, bytes]:
        """Return the name for errors, and a small object. Raises LoaderError for one of more than `limit` bytes."""
        source = self.open(url)
        try:
            if source.size > limit:
                raise LoaderError(source.name, f"{source.size} bytes", f"at most {limit}")
            return source.name, read_start(source, source.size)
        finally:
            with suppress(HyperpodError):
                source.close()
