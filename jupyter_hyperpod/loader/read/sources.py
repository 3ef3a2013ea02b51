"""Opens the right kind of source for each URL, and imports its module at the first use."""

from __future__ import annotations

from ..urls import scheme_of
from .source import LoadResources, Options, Source


class Opener(LoadResources):
    """Opens the objects of one load."""

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
            from .s3 import open_s3

            return open_s3(url, self)
        if scheme in ("http", "https"):
            from .http import HttpSource

            return HttpSource(url, self)
        from .fsspec_source import OtherSource

        return OtherSource(url, self.counters)


def open_source(url: str, options: Options | None = None) -> Source:
    """Open one object: S3 and HTTP(S) with our own HTTP client, files by `preadv`, others through fsspec."""
    return Opener(options).open(url)
