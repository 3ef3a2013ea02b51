"""The mount drivers, which `drivers.toml` describes, and their commands. Pure except for `missing`.

A command is a list of arguments, never a shell line, and holds no secret: programs read secrets from their environment
(`Driver.secrets`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from ..core.errors import SpecError
from ..core.mount_spec import MountSpec
from ..system import portable

_SECRET_WORDS = ("secret", "passw", "token", "credential", "access_key", "access-key", "private-key")
_MODES = {"private": ("0700", "0600"), "group": ("0770", "0660"), "everyone": ("0777", "0666")}


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands that mount and unmount. ``serves``: `mount` keeps running as the mount's server (FUSE)."""

    mount: tuple[str, ...]
    unmount: tuple[str, ...]
    force: tuple[str, ...]
    serves: bool


@dataclass(frozen=True, slots=True)
class MountPaths:
    """The local paths of a mount: its mount point, a directory for its caches, a socket."""

    path: str
    cache: str
    socket: str


@dataclass(frozen=True, slots=True)
class Driver:
    """One way to mount shared files; `drivers.toml` explains the fields. ``options``: name -> flag."""

    name: str
    summary: str
    source: str
    program: str
    file_system: str
    options: Mapping[str, str]
    secrets: tuple[str, ...]
    run: bool
    render: Callable[[MountSpec, MountPaths, Driver], Commands] | None

    @property
    def mounts(self) -> bool:
        """Whether the kernel has to mount something before the files are visible."""
        return self.render is not None


def _fuse(argv: list[str], place: MountPaths) -> Commands:
    unmount = ("fusermount3", "-u", place.path)
    return Commands(tuple(argv), unmount, ("fusermount3", "-u", "-z", place.path), serves=True)


def _kernel(kind: str, spec: MountSpec, place: MountPaths, fixed: tuple[str, ...]) -> Commands:
    words = [*fixed, *(f"{name}={value}" if value else name for name, value in sorted(spec.options.items()))]
    words += ["ro"] if spec.read_only else []
    argv = ("mount", "-t", kind, "-o", ",".join(["nosuid", "nodev", *words]), spec.source, place.path)
    return Commands(argv, ("umount", place.path), ("umount", "-f", "-l", place.path), serves=False)


def _flags(spec: MountSpec, driver: Driver) -> list[str]:
    found = []
    for name, value in sorted(spec.options.items()):
        flag = driver.options[name]
        found += [flag + value] if flag.endswith("=") else [flag] if not value else [flag, value]
    return found


def _nfs(spec: MountSpec, place: MountPaths, driver: Driver) -> Commands:
    return _kernel("nfs", spec, place, ("hard",) if "soft" not in spec.options else ())


def _lustre(spec: MountSpec, place: MountPaths, driver: Driver) -> Commands:
    return _kernel("lustre", spec, place, ("relatime", "flock"))


def _juicefs(spec: MountSpec, place: MountPaths, driver: Driver) -> Commands:
    argv = ["juicefs", "mount", "--no-usage-report", "--no-syslog", "--cache-dir", place.cache]
    argv += [*_flags(spec, driver), *(["--read-only"] if spec.read_only else [])]
    argv += ["-o", "allow_other"] if spec.access != "private" else []
    return _fuse([*argv, spec.source, place.path], place)


def _seaweedfs(spec: MountSpec, place: MountPaths, driver: Driver) -> Commands:
    filer, _, rest = spec.source.partition("/")
    argv = ["weed", "-logtostderr", "mount", f"-filer={filer}", f"-filer.path=/{rest}"]
    argv += [f"-dir={place.path}", f"-cacheDir={place.cache}", f"-localSocket={place.socket}"]
    argv += ["-allowOthers=" + ("false" if spec.access == "private" else "true"), *_flags(spec, driver)]
    return _fuse([*argv, *(["-readOnly"] if spec.read_only else [])], place)


def _rclone(spec: MountSpec, place: MountPaths, driver: Driver) -> Commands:
    directories, files = _MODES[spec.access]
    argv = ["rclone", "mount", "--cache-dir", place.cache, "--dir-perms", directories, "--file-perms", files]
    argv += ["--umask", "000"]
    if "config" not in spec.options:
        argv += ["--config", ""]
    if "vfs-cache-mode" not in spec.options:
        argv += ["--vfs-cache-mode", "full"]  # without it files can only be written sequentially
    if spec.source.startswith(":s3:"):
        argv += ["--s3-env-auth"]
    argv += [*_flags(spec, driver), *(["--read-only"] if spec.read_only else [])]
    argv += ["--allow-other"] if spec.access != "private" else []
    return _fuse([*argv, spec.source, place.path], place)


_RENDER = {"nfs": _nfs, "lustre": _lustre, "juicefs": _juicefs, "seaweedfs": _seaweedfs, "rclone": _rclone}


def _driver(name: str, row: Mapping[str, Any]) -> Driver:
    return Driver(
        name,
        row["summary"],
        row["source"],
        row.get("program", ""),
        row.get("file_system", ""),
        {option: f"--{option}" for option in row.get("options", ())} | row.get("flags", {}),
        tuple(row.get("secrets", ())),
        row.get("run", True),
        _RENDER.get(name),
    )


_TABLE = tomllib.loads(files(__package__).joinpath("drivers.toml").read_text())
DRIVERS: Mapping[str, Driver] = MappingProxyType({name: _driver(name, row) for name, row in _TABLE.items()})


def check(spec: MountSpec) -> Driver:
    """Return the driver of `spec`, or raise SpecError where its source or options do not fit."""
    driver = DRIVERS[spec.driver]
    for name in spec.options:
        if any(word in name for word in _SECRET_WORDS):
            raise SpecError(
                f"option {name!r} looks like a secret; secrets never go into the mount table: put them into the "
                f"environment ({', '.join(driver.secrets) or 'none is read here'}) or into a file of mode 0600 "
                "named by --credentials"
            )
        if name not in driver.options:
            known = ", ".join(sorted(driver.options)) or "none"
            raise SpecError(f"option {name!r} is unknown to driver {driver.name!r}; expected some of: {known}")
        if "," in spec.options[name] and driver.name in ("nfs", "lustre"):
            raise SpecError(f"option {name}={spec.options[name]!r} holds a comma, which would begin another option")
    if driver.source != "none" and not spec.source:
        raise SpecError(f"driver {driver.name!r} needs a source: {driver.source}")
    if driver.source == "none" and spec.source:
        raise SpecError(
            f"driver {driver.name!r} takes no source, found {spec.source[:80]!r}; its directory is its path"
        )
    if driver.name == "s3" and not spec.source.startswith("s3://"):
        raise SpecError(f"source {spec.source[:80]!r} is no bucket; expected {driver.source}")
    return driver


def commands(spec: MountSpec, place: MountPaths) -> Commands:
    """Return the commands that mount `spec` at `place`. Raises SpecError where there is nothing to mount."""
    driver = check(spec)
    if driver.render is None:
        raise SpecError(f"driver {driver.name!r} has nothing to mount")
    return driver.render(spec, place, driver)


def missing(driver: Driver) -> str:
    """Why this machine cannot mount with `driver`, and the remedy; empty where it can."""
    if not driver.mounts:
        return ""
    if program(driver.program) is None:
        return f"{driver.program} is not installed; install it, or choose another driver"
    if driver.file_system == "fuse":
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            return "/dev/fuse cannot be opened: this machine or container does not allow FUSE"
        if program("fusermount3") is None:
            return "fusermount3 is not installed; install the package fuse3"
        return ""
    with open("/proc/filesystems") as file:
        known = {line.split()[-1] for line in file if line.strip()}
    if driver.file_system not in known:
        return f"this kernel has no {driver.file_system} client; load its module, or choose another driver"
    root = portable.HAS_USERS and portable.user_id() == 0
    return "" if root else f"mounting {driver.name} needs root; mount it beforehand at its notebook path"


def program(name: str) -> str | None:
    """The path of a program: on PATH, beside this interpreter, or in the administrators' directories."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return shutil.which(name, path=path)
