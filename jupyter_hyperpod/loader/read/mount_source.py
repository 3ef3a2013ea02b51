"""Resolves addresses in mounts, such as ``shared://NAME/path``, and fetches files that only a mount's store has."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...core.errors import HyperpodError, LoaderError, SpecError
from ...core.mount_spec import MountSpec
from ...mounts.table import REMOTE, Mounts, known_mounts, make_way, resolve_url, specs_by_prefix
from ...storage.store import SHARED


class Shared:
    """The mounts of one load; the table is read when an address first needs it."""

    def __init__(self, mounts: Mounts | None = None) -> None:
        self._mounts = mounts
        self._buckets: dict[str, MountSpec] = {}

    def locate(self, url: str) -> str:
        """Return the path or URL of an address in a mount, any other address unchanged. Raises SpecError."""
        area, separator, _ = url.partition("://")
        if not separator or area == "file" or area in REMOTE:
            return url
        known = self._known()
        if area != SHARED and area not in known and area not in known.absent:
            return url
        address = resolve_url(url, known)
        self._buckets |= {name: spec for name, spec in known.specs.items() if spec.driver == "s3"}
        return address

    def target(self, url: str) -> str:
        """As `locate`, for writing. Raises SpecError, Conflict for a read-only mount, StoreError."""
        address = self.locate(url)
        if address != url:
            from ...mounts import copying

            copying.refuse_read_only(address, url, self._known())
            if "://" not in address:
                make_way(address, self._known())
        return address

    def bucket(self, url: str) -> MountSpec | None:
        """Return the mount of an s3:// URL to which an address in a mount was resolved."""
        return specs_by_prefix(url, self._buckets)

    def fetch(self, path: str) -> None:
        """Fetch a file that only the object store behind its mount has. Raises LoaderError where that fails."""
        if os.path.lexists(path) or not self.comes_back(path):
            return
        from ...mounts import repository

        try:
            repository.local(os.path.abspath(path), self._known())
        except SpecError:
            raise
        except HyperpodError as error:
            raise LoaderError(path, f"no copy of it here ({error})", "one from the mount's repository") from None

    def comes_back(self, path: str) -> bool:
        """Whether a removed file is restored by reading it, because an object store is behind its mount."""
        try:
            known = self._known()
        except HyperpodError:  # a plain path works without a mount table
            return False
        roots = [known[name] for name, spec in known.specs.items() if spec.repository and name in known]
        return any(os.path.abspath(path).startswith(os.path.normpath(root) + "/") for root in roots)

    def _known(self) -> Mounts:
        if self._mounts is None:
            self._mounts = known_mounts()
        return self._mounts


def variables_of(url: str, spec: MountSpec | None) -> Mapping[str, str]:
    """Return a mount's settings for its bucket, as environment variables of AWS clients. Raises SpecError."""
    if spec is None:
        return {}
    from ...mounts import remote

    return remote.environment(url, {spec.name: spec})
