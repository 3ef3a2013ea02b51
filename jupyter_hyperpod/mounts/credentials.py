"""Reads the secrets of mount drivers, from the environment or a private file of NAME=VALUE lines."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping

from ..core.errors import SpecError
from ..core.mount_spec import MountSpec
from ..system import portable
from . import drivers

_LIMIT_BYTES = 64 << 10
IDENTITY = frozenset({"AWS_ACCESS_KEY_ID", "AWS_PROFILE"})


def of(spec: MountSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with secrets for the driver of `spec`. Raises SpecError for a file that is not private."""
    names = drivers.DRIVERS[spec.driver].secrets
    own = read(spec.credentials, names) if spec.credentials else {}
    # otherwise the key or token of another account would be sent along
    besides = [name for name in names if not (IDENTITY.intersection(own) and name.startswith("AWS_"))]
    return {name: environment[name] for name in besides if name in environment} | own


def read(path: str, allowed: tuple[str, ...]) -> dict[str, str]:
    """Read a file of NAME=VALUE lines that only this user can read. Raises SpecError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | portable.NO_LINK | portable.NO_WAITING | portable.NOT_INHERITED)
    except OSError as error:
        raise SpecError(f"credentials file {path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        mode = portable.permissions(about)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != portable.user_id() or mode & 0o077:
            raise SpecError(
                f"credentials file {path} has owner {about.st_uid} and mode {mode:04o}; expected a file of your own "
                f"with mode 0600: `chmod 600 {shlex.quote(os.fspath(path))}`"
            )
        lines = file.read(_LIMIT_BYTES).decode(errors="replace").splitlines()
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.strip() not in allowed:
            raise SpecError(
                f"line {number} of credentials file {path} is not one of NAME=VALUE with a NAME out of "
                f"{', '.join(allowed) or 'none'}"
            )
        found[name.strip()] = value.strip().strip("\"'")
    return found
