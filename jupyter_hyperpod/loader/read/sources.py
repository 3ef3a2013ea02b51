"""Which implementation of a source a URL gets; each is imported when a URL first needs it."""

from __future__ import annotations

from ..urls import scheme_of
from .source import LoadResources, Options, Source


class Opener(LoadResources):
    """Opens the objects of one load."""

    def open(self, url: str) -> Source:
        """Open an object; raises LoaderError where there is none, or no permission."""
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
    """Open one object: S3 and HTTP(S) by the engine of our own, files by `preadv`, anything else by fsspec."""
    return Opener(options).open(url)
