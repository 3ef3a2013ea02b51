"""Helpers for paths and URLs of objects: scheme and neighbours."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..core.errors import SpecError


def scheme_of(url: str) -> str:
    """Return the scheme, "file" for a path."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return "file"
    if not scheme.replace("+", "").replace("-", "").isalnum():
        raise SpecError(f"{url!r} is neither a path nor a URL")
    return scheme.lower()


def path_in(url: str) -> str:
    """Return the part of a URL that names the object, without the query of http(s) URLs."""
    return unquote(urlsplit(url).path) if scheme_of(url) in ("http", "https") else url


def inside(url: str, name: str) -> str:
    """Return the URL of `name` in the directory `url`; a query stays, because it may grant access."""
    if scheme_of(url) not in ("http", "https"):
        return f"{url.rstrip('/')}/{name}"
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def beside(url: str, name: str) -> str:
    """Return the URL of `name` in the directory of the object `url`."""
    if scheme_of(url) not in ("file", "http", "https") or "://" not in url:
        head, slash, _ = url.rpartition("/")
        return f"{head}{slash}{name}"
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + quote(name)))
