"""What a submission finds out before its job starts: its fingerprint, and where members will have another environment.

Each finding is a sentence that becomes a warning of the job: the cell, the panel and the terminal show the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ...backends.source import same_interpreter
from ...core.backends import DEFAULT_BACKEND
from ...core.errors import ClusterError, NotFound, StoreError
from ...core.names import is_env_name
from ...core.spec import JobSpec
from ...core.units import few
from ...policy import parity
from ...storage.fingerprint import record
from ...storage.fingerprint.distributions import Distribution, info_of
from ...storage.fingerprint.record import AT_SUBMIT, Fingerprint
from ...storage.store import JobStore, Store
from ...system import portable
from .. import cluster

# where the name of a module is not that of its package
_MODULES = {
    "pyyaml": "yaml", "scikit-learn": "sklearn", "pillow": "PIL", "opencv-python": "cv2", "beautifulsoup4": "bs4",
    "python-dateutil": "dateutil", "attrs": "attr", "opencv-python-headless": "cv2",
}  # fmt: skip
_SET_BY_LIBRARIES = {"KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK", "TORCHINDUCTOR_CACHE_DIR", "CUBLAS_WORKSPACE_CONFIG"}
SEE = "`env diff` shows what that may change"


def fingerprint_of(store: Store, spec: JobSpec) -> tuple[Fingerprint, list[str]]:
    """The environment that members of a job will have, and sentences about where it is not that of this process."""
    names = (*spec.env, *spec.env_from)
    cache, directory = record.cache_of(store), spec.working_directory
    mine = record.take(directory, names, cache=cache, limits=AT_SUBMIT)
    if same_interpreter(spec.python or sys.executable):
        return mine, [*_imported_before(mine), *_set_here_alone(store, spec)]
    try:
        theirs = record.take(directory, names, python=spec.python, cache=cache, limits=AT_SUBMIT)
    except StoreError:
        return {**mine, "python": None, "packages": {}, "devices": None}, []  # it may be there on other machines only
    changed = parity.of_members(mine, theirs)
    said = f"members run {spec.python}, where other packages are: "
    return theirs, [said + f"{parity.sentence(changed, 'here', 'there')}. {SEE}"] if changed else []


def since(earlier: JobStore, now: Mapping[str, object]) -> list[str]:
    """A sentence about what is not as it was when an earlier job with the same code was submitted."""
    try:
        changed = parity.differences(record.of_job(earlier.path), now)
    except (NotFound, StoreError):
        return []
    grave = [one for one in changed if one.rank <= 3]
    told = parity.sentence(grave, "then", "now")
    return [f"since {earlier.id} was submitted, its environment has changed: {told}. {SEE}"] if grave else []


def _imported_before(mine: Fingerprint) -> Iterator[str]:
    """Packages of which this process has imported another version than members will find."""
    stale = [
        f"{name} {running}, while {one.version} is installed now"
        for name, one in record.packages_of(mine).items()
        if (running := _running(name, one)) and running != one.version
    ]
    if stale:
        yield (
            f"this process has imported {few(stale, parity.SHOWN)}: members will import what is installed. Restart the "
            "kernel to try the cell with that"
        )


def _running(name: str, one: Distribution) -> str:
    """The version of a package that this process has imported; "" where it has not, or where that is not known."""
    known = getattr(
        sys.modules.get(_MODULES.get(name, name.replace("-", "_"))), "__dict__", {}
    )  # no code of theirs runs
    version = known.get("__version__")
    if not isinstance(version, str) or version == one.version:
        return ""
    origin = known.get("__file__")
    return version if origin and _installed_since(Path(origin), name) else ""


def _process_began_s() -> float:
    """When this process began; where the system does not tell, when this package was loaded."""
    from ...system.processes import start_ticks  # it opens the C library, which most submissions do not need

    ticks = start_ticks(os.getpid())
    if ticks is None:
        return portable.LOADED_S
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _installed_since(module: Path, name: str) -> bool:
    """Whether a package was installed where this module is after this process began.

    Some packages never call themselves by the version that their metadata have.
    """
    began_s = _process_began_s()
    for folder in module.parents[:2]:  # of a module, or of a package
        if info := info_of(folder, name):
            with suppress(OSError):
                return os.stat(os.path.join(info, "RECORD")).st_mtime > began_s - 1
    return False


def _set_here_alone(store: Store, spec: JobSpec) -> Iterator[str]:
    """Variables that programs compute with, that this process has set itself, and that members will not have."""
    began = _environment(os.getpid())
    if not began or spec.backend != DEFAULT_BACKEND:
        return
    mine = [
        name
        for name, value in os.environ.items()
        if began.get(name) != value
        and parity.variable_change(name)
        and name not in {*spec.env, *spec.env_from, *_SET_BY_LIBRARIES}
        and is_env_name(name)
    ]
    if not mine:
        return
    with suppress(ClusterError, LookupError, ValueError):
        theirs = _environment(int(cluster.request(store, {"op": "status"})["pid"]))
        if lacking := [name for name in sorted(mine) if theirs and theirs.get(name) != os.environ[name]]:
            changes = "; ".join(dict.fromkeys(parity.variable_change(name) for name in lacking))
            yield (
                f"this process has set {few(lacking, parity.SHOWN)}, and members do not have that: {changes}. "
                f"`--env {lacking[0]}` passes it on"
            )


def _environment(pid: int) -> dict[str, str]:
    """The variables with which a process of this user began; empty where they cannot be read."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
