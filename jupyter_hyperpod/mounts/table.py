"""The mount table of a cluster: name -> driver, path in the notebook, path on a node.

The table is one private file in the store. ``shared://NAME/path`` and ``NAME://path`` name a file on either side, and
``shared://path`` a file of the default mount; ``~`` as the first part of a path is the user's own area.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ..core.errors import Conflict, NotFound, SpecError, StoreError
from ..core.mount_spec import MountSpec
from ..core.names import validate_name
from ..storage.store import SHARED, Store, private_directory, write_private
from ..system import portable
from ..system.locks import one_at_a_time
from ..system.users import own_name
from . import drivers

TABLE = "mounts.json"
# schemes of other software, whose addresses are opened unchanged
REMOTE = ("s3", "http", "https", "gs", "gcs", "az", "abfs", "hf", "memory")
USERS = "users"
OWN = "~"
_MAX_TABLE_BYTES = 1 << 20
_AREA_MODES = {"private": 0o700, "group": 0o2770, "everyone": 0o1777}


class Mounts(dict[str, str]):
    """Name of a mount -> its root on this side: a path, or a URL where the kernel mounts nothing.

    ``absent``: mounts in the table that cannot be used here, and why. ``specs`` are the records.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.absent: dict[str, str] = {}
        self.specs: dict[str, MountSpec] = {}


def default_mount(store: Store) -> MountSpec:
    """The default mount, which always exists: a directory of the store."""
    return MountSpec(SHARED, str(store.shared), str(store.shared))


def table(store: Store) -> dict[str, MountSpec]:
    """Every mount by name, the default one first. Raises StoreError where the table cannot be read or trusted."""
    found = {SHARED: default_mount(store)}
    for record in _read(store):
        spec = MountSpec.from_json(record)
        found[spec.name] = spec
    return found


def add(store: Store, spec: MountSpec) -> None:
    """Put a mount into the table. Raises SpecError for an invalid one, Conflict where the name is taken."""
    drivers.check(spec)
    if spec.name in REMOTE:
        raise SpecError(f"{spec.name!r} is the scheme of other addresses; choose another name for the mount")
    with _changing(store) as specs:
        if spec.name in specs:
            raise Conflict(f"there is a mount {spec.name!r} already; remove it first: `jupyter hyperpod mount remove`")
        if spec.name != SHARED and os.path.lexists(store.shared / spec.name):
            raise Conflict(
                f"shared://{spec.name} is a file of the default mount already ({store.shared / spec.name}); "
                "choose another name, or move it away"
            )
        specs[spec.name] = spec


def remove(store: Store, name: str) -> MountSpec:
    """Take a mount out of the table and return it; its files stay. Raises NotFound."""
    with _changing(store) as specs:
        if name not in specs:
            raise NotFound(f"no mount {name!r} in the table{'; the default one always stays' * (name == SHARED)}")
        return specs.pop(name)


def get(store: Store, name: str) -> MountSpec:
    """Return the mount of that name; raises NotFound with the known ones."""
    specs = table(store)
    if name not in specs:
        raise NotFound(f"no mount {name[:80]!r}; known mounts: {', '.join(sorted(specs))}")
    return specs[name]


def for_job(specs: Iterable[MountSpec]) -> dict[str, Any]:
    """The mounts for a job's processes: name -> path on the node, or the whole record where the path is not enough."""
    found: dict[str, Any] = {}
    for spec in specs:
        path = spec.node_path
        plain = spec.driver == "directory" and spec == MountSpec(spec.name, spec.notebook_path, path)
        found[spec.name] = path if plain else asdict(spec)
    return found


def unreachable(name: str, why: str) -> dict[str, Any]:
    """The same for a mount that nodes cannot have."""
    return {name: {"absent": why}}


def from_environment(text: str) -> Mounts:
    """Inverse of the JSON of `for_job`: the roots that this node sees."""
    specs, plain, absent = [], {}, {}
    for name, about in json.loads(text).items():
        if isinstance(about, str):
            plain[name] = about
        elif "absent" in about:
            absent[name] = str(about["absent"])
        else:
            specs.append(MountSpec.from_json(about))
    found = roots(specs, "node")
    found.update(plain)
    found.absent.update(absent)
    return found


def roots(specs: Iterable[MountSpec], side: str) -> Mounts:
    """Name -> root as `side` ("notebook" or "node") sees it; unmounted ones are absent, with the reason."""
    found = Mounts()
    mounted: dict[str, str] | None = None
    for spec in specs:
        found.specs[spec.name] = spec
        if spec.driver == "s3":
            found[spec.name] = spec.source
            continue
        path = spec.node_path if side == "node" else spec.notebook_path
        if drivers.DRIVERS[spec.driver].mounts:
            mounted = mounted_at() if mounted is None else mounted
            if real(path) not in mounted:
                found.absent[spec.name] = (
                    f"mount {spec.name!r} ({spec.driver}) is not mounted at {path}; "
                    f"mount it there: `jupyter hyperpod mount attach {spec.name}`"
                )
                continue
        found[spec.name] = path
    return found


def mounted_at() -> dict[str, str]:
    """Mount point -> file system of everything that this process sees mounted; asks no file system."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    return {_unescape(parts[4]): parts[parts.index("-") + 1] for parts in lines}


def real(path: str) -> str:
    """`path` as the kernel names it. The last part is not accessed: a mount that hangs would block this process."""
    path = os.path.normpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def resolve_url(url: str, mounts: Mapping[str, str]) -> str:
    """Resolve ``shared://NAME/path``, ``NAME://path`` or ``shared://path`` by the mount table.

    The first part of a path may be ``~``: the user's own area. Other text and URLs of other kinds are returned
    unchanged. Raises SpecError for an unknown or absent mount, or a path that leaves it.
    """
    area, separator, rest = url.partition("://")
    if not separator or area == "file" or area in REMOTE:
        return rest if area == "file" else url
    validate_name(area, "mount name")
    absent: Mapping[str, str] = getattr(mounts, "absent", {})
    first, slash, after = rest.partition("/")
    if area == SHARED and first != SHARED and (first in mounts or first in absent):
        area, rest = first, after
    if area in absent:
        raise SpecError(absent[area])
    if area not in mounts:
        raise SpecError(f"no mount named {area!r}; known mounts: {', '.join(sorted(mounts)) or 'none'}")
    if rest == "~" or rest.startswith("~/"):
        rest = f"{USERS}/{login()}{rest[1:]}"
    scheme, remote, root = mounts[area].rpartition("://")
    root = os.path.normpath(root)
    path = os.path.normpath(os.path.join(root, rest))
    if "\0" in rest or os.path.isabs(path) != os.path.isabs(root) or os.path.commonpath([root, path]) != root:
        raise SpecError(f"{url!r} leaves its mount {area!r}")
    return scheme + remote + path


def known_mounts() -> Mounts:
    """The mounts of this process: those of its job, else those of the default store's table."""
    if given := os.environ.get("HYPERPOD_MOUNTS"):
        return from_environment(given)
    return roots(table(Store()).values(), "notebook")


def login() -> str:
    """The name of the user's own areas."""
    try:
        return validate_name(own_name(), "user name")
    except SpecError:
        return f"uid-{portable.user_id()}"


def own_area(root: str, access: str = "private") -> str:
    """Create and return ``<root>/users/<login>``, private to its owner. Raises StoreError where it belongs to another
    user.

    ``users`` itself is open to all users of the mount; no user can take over another user's area.
    """
    users, own = os.path.join(root, USERS), os.path.join(root, USERS, login())
    _make(users, _AREA_MODES["private" if access == "private" else "everyone"])
    _make(own, 0o700)
    about = os.lstat(own)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != portable.user_id() or portable.permissions(about) & 0o077:
        raise StoreError(
            f"{own} is not a private directory of yours (owner {about.st_uid}, mode {portable.permissions(about):04o}, "
            f"expected {portable.user_id()} and 0700); it may have been made by somebody else: ask who "
            "looks after the mount"
        )
    return own


def make_way(address: str, known: Mounts) -> None:
    """Create the user's own area where `address` lies in it. Raises StoreError where it belongs to another user."""
    for name, root in known.items():
        own = os.path.join(root, USERS, login())
        if address == own or address.startswith(own + "/"):
            own_area(root, known.specs[name].access if name in known.specs else "private")


def make_root(spec: MountSpec, path: str) -> None:
    """Create the directory of a mount where it is missing, with the mode of its access. Raises StoreError."""
    try:
        os.makedirs(os.path.dirname(os.path.normpath(path)), mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}") from error
    _make(path, _AREA_MODES[spec.access])


def _make(path: str, mode: int) -> None:
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, mode)  # including bits that the umask removes
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}") from error


def _read(store: Store) -> list[Any]:
    path = store.root / TABLE
    try:
        descriptor = os.open(path, os.O_RDONLY | portable.NO_LINK | portable.NOT_INHERITED)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if about.st_uid != portable.user_id() or portable.permissions(about) & 0o022:
            raise StoreError(
                f"{path} could have been changed by other users (owner {about.st_uid}, mode "
                f"{portable.permissions(about):04o}); expected your own and 0600"
            )
        content = file.read(_MAX_TABLE_BYTES)
    try:
        records = json.loads(content)
        return list(records["mounts"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged: {error}; repair it or remove it") from error


@contextmanager
def _changing(store: Store) -> Iterator[dict[str, MountSpec]]:
    """The table's own mounts (without the default one), written back when the block ends without an error."""
    private_directory(store.root)
    with one_at_a_time(store.root / f".{TABLE}.lock", "the table of mounts is being changed", None):
        specs = {spec.name: spec for spec in map(MountSpec.from_json, _read(store))}
        yield specs
        content = json.dumps({"mounts": [asdict(spec) for spec in specs.values()]}, indent=1)
        write_private(store.root / TABLE, content.encode())


def specs_by_prefix(url: str, specs: Mapping[str, MountSpec]) -> MountSpec | None:
    """The mount of driver s3 that `url` lies in, the longest source first; None where there is none."""
    inside = [
        spec for spec in specs.values() if spec.driver == "s3" and (url + "/").startswith(spec.source.rstrip("/") + "/")
    ]
    return max(inside, key=lambda spec: len(spec.source), default=None)
