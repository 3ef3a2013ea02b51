"""Takes the fingerprint of an environment, and keeps it with a job: a private file of bounded size.

It has the names of environment variables and no values. A submission waits for it for a few hundredths of a second;
what was not known by then is marked so, and is compared with nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import NotFound, StoreError
from ...system import portable
from ...system.users import user_name
from ..store import Store
from . import machine
from .distributions import Distribution, RecordCache, installed, normal
from .git_state import GitLook

FILE = "fingerprint.json"
OLD_FILE = "packages.json"  # of earlier versions: names and versions of packages
CACHE = "distributions.json"  # in the store
MOST_BYTES = 2 << 20
MOST_VARIABLES = 2000
ANSWER_S = 10.0  # for another interpreter
Fingerprint = dict[str, Any]
# run by another interpreter, which needs nothing of ours
_ASK = (
    "import sys, os, json; print(json.dumps({'path': sys.path[1:], 'version': sys.version.split()[0], "
    "'implementation': sys.implementation.name, 'executable': sys.executable, 'prefix': sys.prefix, "
    "'kind': 'conda' if os.path.isdir(os.path.join(sys.prefix, 'conda-meta')) else "
    "'venv' if sys.prefix != sys.base_prefix else 'system'}))"
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a fingerprint may take, in seconds: for digests of packages, and for git."""

    packages_s: float = 60.0
    git_s: float = 10.0


AT_SUBMIT = Patience(packages_s=0.02, git_s=0.02)


def take(
    directory: str,
    variables: Iterable[str] = (),
    *,
    python: str = "",
    cache: Path | None = None,
    limits: Patience = Patience(),
) -> Fingerprint:
    """The fingerprint of this process's environment, or of that of another interpreter, ``python``.

    ``directory``: where the project is. ``variables``: names besides those of this process. Raises StoreError where the
    other interpreter does not run.
    """
    git = GitLook(directory)
    try:
        path, about = _interpreter(python)
        packages = installed(path, RecordCache(cache), limits.packages_s)
    except StoreError:
        git.state(0.0)
        raise
    names = sorted({*os.environ, *variables})
    found: Fingerprint = {
        "v": 1,
        "taken_s": time.time(),
        "python": about,
        "machine": machine.processor(),
        "devices": machine.devices(path, packages),
        "packages": {name: one.to_json() for name, one in packages.items()},
        "variables": [name[:200] for name in names[:MOST_VARIABLES]],
        "directory": directory,
    }
    found["git"] = git.state(limits.git_s)
    return found


def _interpreter(python: str) -> tuple[Sequence[str], dict[str, str]]:
    if not python:
        return sys.path, machine.interpreter()
    said = ""
    try:
        done = subprocess.run(
            [python, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
        )
        said = done.stderr.strip()[-300:]
        about = json.loads(done.stdout)
        path = about.pop("path")
    except (OSError, ValueError, LookupError, AttributeError, subprocess.SubprocessError) as error:
        raise StoreError(f"{python} does not say what it has: {said or error}") from None
    return path, about


def leave(job: Path, found: Mapping[str, Any]) -> None:
    """Write a fingerprint into the directory of a job. Raises OSError."""
    content = json.dumps(found, separators=(",", ":")).encode()
    if len(content) > MOST_BYTES:
        content = json.dumps({**found, "git": {}, "variables": []}).encode()[:MOST_BYTES]
    descriptor = os.open(job / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def of_job(job: Path) -> Fingerprint:
    """The fingerprint with which a job was submitted. Raises NotFound without one, StoreError where it is private."""
    if (job / FILE).exists() and not portable.may_access(job / FILE, os.R_OK):
        owner = user_name((job / FILE).stat().st_uid)
        raise StoreError(f"only {owner} may read in which environment {job.name} was submitted, as its owner")
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(_begin(job / FILE))
        if isinstance(found, dict) and isinstance(found.get("packages"), dict):
            return found
    with suppress(OSError, ValueError, RecursionError):
        names = json.loads(_begin(job / OLD_FILE))
        if isinstance(names, dict):
            return {"packages": {normal(name): [version, "", ""] for name, version in names.items()}}
    raise NotFound(f"nothing is known about the environment of {job.name}: it was submitted without a fingerprint")


def _begin(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES)


def of_member(cache: Path | None, budget_s: float = 0.01) -> Fingerprint:
    """What a member compares with its job before the cell begins: its Python and its packages."""
    packages = installed(sys.path, RecordCache(cache), budget_s)
    return {"python": machine.interpreter(), "packages": {name: one.to_json() for name, one in packages.items()}}


def cache_of(store: Store) -> Path:
    """Where digests of packages are kept between submissions."""
    return store.root / CACHE


def packages_of(found: Mapping[str, Any]) -> dict[str, Distribution]:
    """The packages in a fingerprint."""
    return {str(name): Distribution.from_json(record) for name, record in found.get("packages", {}).items()}
