"""MountSpec, a row of the mount table: driver, source, paths and access of a shared area."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import SpecError
from .names import validate_name

DRIVERS = ("directory", "nfs", "lustre", "juicefs", "seaweedfs", "rclone", "s3")
ACCESS = ("private", "group", "everyone")
_OPTION = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_URL_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@")


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A shared area: its source, its path in the notebook and its path on a node.

    ``driver`` is one of `DRIVERS` and ``source`` is an export, a bucket or a URL; ``options`` are the
    driver's own. ``credentials`` is the path of a private file of NAME=VALUE lines; empty means the environment. It
    never holds a secret: the table, journals and jobs' environments contain it. ``repository`` is the URL of an object
    store behind the files. ``access``: who may use the shared part. Raises SpecError.
    """

    name: str
    notebook_path: str
    node_path: str
    read_only: bool = False
    driver: str = "directory"
    source: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    credentials: str = ""
    repository: str = ""
    access: str = "private"
    quota_bytes: int | None = None

    def __post_init__(self) -> None:
        validate_name(self.name, "mount name")
        if self.driver not in DRIVERS:
            raise SpecError(f"driver {self.driver!r} is unknown; expected one of {', '.join(DRIVERS)}")
        if self.access not in ACCESS:
            raise SpecError(f"access {self.access!r} is unknown; expected one of {', '.join(ACCESS)}")
        if self.driver != "s3":
            for what, path in (("notebook path", self.notebook_path), ("node path", self.node_path)):
                _check_mount_path(f"{what} of mount {self.name!r}", path)
        if self.credentials:
            _check_mount_path(f"credentials file of mount {self.name!r}", self.credentials)
        if self.quota_bytes is not None and self.quota_bytes < 1:
            raise SpecError(f"quota of mount {self.name!r} is {self.quota_bytes} bytes; expected at least 1, or none")
        for what, text in (("source", self.source), ("repository", self.repository)):
            if "\0" in text or "\n" in text or text.startswith("-"):
                raise SpecError(f"{what} of mount {self.name!r} is {text[:80]!r}; expected an address")
            if _URL_PASSWORD.search(text):
                raise SpecError(
                    f"{what} of mount {self.name!r} holds a password; secrets never go into the mount table: "
                    "put it into the environment, or into a file of mode 0600 named by --credentials"
                )
        for key, value in self.options.items():
            if not _OPTION.fullmatch(key) or not isinstance(value, str) or set("\0\n") & set(value):
                raise SpecError(f"option {key[:40]!r} of mount {self.name!r} is not of the form NAME=VALUE")

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MountSpec:
        """Build from `asdict`; unknown keys of a newer version are ignored. Raises SpecError."""
        if not isinstance(record, Mapping):
            raise SpecError(f"a mount is a {type(record).__name__}, expected an object")
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{key: value for key, value in record.items() if key in known})
        except (TypeError, AttributeError) as error:
            raise SpecError(f"mount cannot be read: {error}") from error


def _check_mount_path(what: str, path: str) -> None:
    parts = path.split("/")
    if not path.startswith("/") or "\0" in path or "\n" in path or ".." in parts or not path.strip("/"):
        raise SpecError(f"{what} is {path[:80]!r}; expected an absolute path without '..', below '/'")
