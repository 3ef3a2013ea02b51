"""Opens object stores and other URLs through fsspec, with the settings of the mount table."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..core.errors import HyperpodError, NotFound, SpecError, StoreError
from ..core.mount_spec import MountSpec
from . import credentials
from .table import specs_by_prefix

_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
_CONTENT = ("ETag", "etag", "md5Hash", "md5", "Content-MD5", "Digest", "version_id")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "mtime", "created")


def is_remote(address: str) -> bool:
    """Whether this is a URL rather than a path."""
    return "://" in address


def file_system(url: str, specs: Mapping[str, MountSpec] | None = None) -> tuple[Any, str]:
    """``(fsspec file system, path on it)`` of a URL. Raises SpecError where no installed package opens it."""
    import fsspec

    protocol = url.partition("://")[0]
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol == "s3":
        options |= _s3_options(specs_by_prefix(url, specs or {}))
    try:
        return fsspec.filesystem(protocol, **options), fsspec.core.strip_protocol(url)
    except ImportError as error:
        hint = "pip install 'jupyter_hyperpod[s3]'" if protocol == "s3" else str(error)
        raise SpecError(f"{protocol}:// needs a package that is not installed: {hint}") from error
    except ValueError as error:
        raise SpecError(f"{url[:80]!r} cannot be opened: {error}") from error


def _s3_options(spec: MountSpec | None) -> dict[str, Any]:
    # servers other than AWS send the checksum of the whole object with a part of it, or no checksum
    lenient = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    if spec is None:
        return {"config_kwargs": lenient}
    secrets = credentials.of(spec, os.environ)
    found: dict[str, Any] = {"config_kwargs": lenient}
    found |= {_KEYS[name]: value for name, value in secrets.items() if name in _KEYS}
    if endpoint := spec.options.get("endpoint"):
        found["endpoint_url"] = endpoint
    if region := spec.options.get("region"):
        found["client_kwargs"] = {"region_name": region}
    if profile := secrets.get("AWS_PROFILE"):
        found["profile"] = profile
    return found


def environment(url: str, specs: Mapping[str, MountSpec]) -> dict[str, str]:
    """The variables with which AWS clients reach `url` as its mount says; none where it is in no mount of driver s3.

    Raises SpecError for credentials that cannot be read.
    """
    spec = specs_by_prefix(url, specs)
    if spec is None:
        return {}
    found = credentials.of(spec, os.environ)
    if endpoint := spec.options.get("endpoint"):
        found["AWS_ENDPOINT_URL_S3"] = endpoint
    if region := spec.options.get("region"):
        found |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    return found


@contextmanager
def errors(action: str, url: str) -> Iterator[None]:
    """Turn every error of an fsspec driver into NotFound or StoreError, with the name of the object."""
    try:
        yield
    except HyperpodError:
        raise
    except FileNotFoundError as error:
        raise NotFound(f"cannot {action} {url}: there is no such object") from error
    except PermissionError as error:
        raise StoreError(f"cannot {action} {url}: permission denied ({error}); look at the credentials") from error
    except Exception as error:  # drivers of fsspec raise the errors of their libraries
        raise StoreError(f"cannot {action} {url}: {type(error).__name__}: {error}") from error


def identity(about: Mapping[str, Any]) -> str:
    """A text that changes with an object: its ETag, checksum or version, else its time of change; empty if unknown."""
    for name in (*_CONTENT, *_TIMES):
        if value := about.get(name):
            return str(value).strip('"')
    return ""


class RemoteSource:
    """One object, read in ranges. ``etag`` identifies its content. A change meanwhile is an error, so contents never
    mix.

    Where a store offers nothing that identifies content, only a change of size is noticed. The ``etag`` is then a
    random text for this source alone, so that no other reader reuses its blocks.
    """

    def __init__(self, url: str, specs: Mapping[str, MountSpec] | None = None) -> None:
        self.url = url
        self._system, self._path = file_system(url, specs)
        about = self._about()
        if about.get("size") is None:
            raise StoreError(f"{url} does not tell its size; it cannot be read in ranges")
        self.size = int(about["size"])
        self.etag = identity(about) or secrets.token_hex(16)
        self._known = _version(about)

    def _about(self) -> Mapping[str, Any]:
        with errors("read", self.url):
            about: Mapping[str, Any] = self._system.info(self._path)
            return about

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `offset`. Raises StoreError for fewer bytes, or for a changed object."""
        with errors("read", self.url):
            content = self._system.cat_file(self._path, start=offset, end=offset + len(view))
        if len(content) != len(view):
            raise StoreError(f"{self.url}: {len(content)} bytes came for {len(view)} at {offset}; expected all of them")
        if (found := _version(self._about())) != self._known:
            raise StoreError(f"{self.url} was changed while it was read: it is {found}, expected {self._known}")
        view[:] = content


def _version(about: Mapping[str, Any]) -> str:
    return f"{identity(about)} ({about.get('size')} bytes)".lstrip()


def is_placeholder(name: str, about: Mapping[str, Any]) -> bool:
    """Whether this is only the marker of a directory: an empty object "name/", which consoles create for "name"."""
    return name.endswith("/") and not about.get("size") and about.get("type") != "directory"


def listing(url: str, specs: Mapping[str, MountSpec] | None = None) -> list[dict[str, Any]]:
    """The entries below a URL, in the form of `inspection.listing`; raises NotFound, StoreError."""
    system, path = file_system(url, specs)
    with errors("list", url):
        found = system.ls(path, detail=True)
    return [
        entry(one)
        for one in found
        if not is_placeholder(str(one["name"]), one)
        and (str(one["name"]).strip("/") != path.strip("/") or one.get("type") != "directory")
    ]


def entry(about: Mapping[str, Any]) -> dict[str, Any]:
    """One object of fsspec, in the form of `inspection.listing`."""
    return {
        "name": str(about["name"]).rstrip("/").rpartition("/")[2],
        "kind": "directory" if about.get("type") == "directory" else "file",
        "bytes": int(about.get("size") or 0),
        "changed_ns": max(0, int(changed.timestamp() * 1e9)) if (changed := about.get("LastModified")) else 0,
        "mode": "-",
    }
