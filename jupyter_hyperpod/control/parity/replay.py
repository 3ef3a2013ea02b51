"""Builds the environment of a lock again, with uv where it is installed, else with pip; once per digest and store.

What an index does not have is left out and named. Nothing is looked up that was installed from a folder: an index may
have something else under that name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import NotFound, StoreError
from ...core.units import plural
from ...policy import parity
from ...storage.fingerprint import record
from ...storage.fingerprint.distributions import RecordCache, installed
from ...storage.store import Store, private_directory, write_private
from ...system.locks import one_at_a_time
from . import requirements
from .installer import run_installer, terminated_as_interrupted
from .requirements import EnvironmentLock

FOLDER = "environments"  # in the store
DONE = "replay.json"
BUILD_S = 3600.0


@dataclass
class ReplayedEnvironment:
    """An environment in a store. ``missing``: package -> why it could not be had. ``other``: what is not as it was."""

    python: str
    digest: str
    built: bool
    took_s: float
    with_tool: str
    missing: dict[str, str] = field(default_factory=dict)
    other: list[parity.Difference] = field(default_factory=list)


def replay(
    store: Store,
    found: record.Fingerprint,
    python: str = "",
    say: Callable[[str], object] = lambda text: None,
    title: str = "an environment",
) -> ReplayedEnvironment:
    """The environment of a fingerprint, built where the store does not have it complete.

    ``python``: which interpreter it is made of; else one of the same minor version that is found here. Raises NotFound
    where there is none, SpecError where nothing can install, StoreError where the store refuses.
    """
    made = requirements.lock(found)
    base = python or _interpreter(made.python)
    began_s, folder = time.monotonic(), private_directory(store.prepare().root / FOLDER)
    of_another = f"-{hashlib.sha256(os.fsencode(python)).hexdigest()[:8]}" if python else ""
    place = folder / f"{made.digest}{of_another}"
    tool = "uv" if requirements.uv() else "pip"
    with terminated_as_interrupted(), _alone(folder / f".{place.name}.lock", place):
        missing = _known_to_lack(place)
        wanted = {name: line for name, line in made.lines.items() if missing is None or name in missing}
        with _whole_or_gone(place, missing is None, say):
            if missing is None:
                shutil.rmtree(place, ignore_errors=True)
                say(f"building {plural(len(wanted), 'package')} for {title} with {tool} into {place}")
                _make(base, place)
            if wanted:
                missing = _install(wanted, place, say)
                write_private(place / DONE, json.dumps({"missing": missing}).encode())
    left_out = {name: why for name, why in made.left_out.items() if name not in requirements.NOT_MISSED}
    lacks = {**dict(missing or {}), **left_out}
    answer = ReplayedEnvironment(str(place / "bin" / "python"), made.digest, bool(wanted), 0.0, tool, lacks)
    answer.other = _other(place, found, made)
    answer.took_s = time.monotonic() - began_s
    return answer


@contextmanager
def _alone(lock: Path, place: Path) -> Iterator[None]:
    """One process at a time builds; the last one removes the file of the lock, and who waits for it takes a new one."""
    end_s = time.monotonic() + BUILD_S
    while True:
        with one_at_a_time(lock, f"another process builds {place}", max(0.0, end_s - time.monotonic())) as held:
            if not _is(held, lock):
                continue  # the one before removed it while this one waited
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


@contextmanager
def _whole_or_gone(place: Path, new: bool, say: Callable[[str], object]) -> Iterator[None]:
    """Remove a new environment that does not become whole; one that was there before stays as it is."""
    try:
        yield
    except BaseException as error:
        if new:
            shutil.rmtree(place, ignore_errors=True)
        if not isinstance(error, Exception):
            say("interrupted: the installer was ended, " + ("and nothing of it is left" if new else f"{place} stays"))
        raise


def _interpreter(version: str) -> str:
    """An interpreter of the same minor version. Raises NotFound."""
    minor = ".".join(version.split(".")[:2])
    if not minor or minor == ".".join(sys.version.split(".")[:2]):
        return sys.executable
    if found := shutil.which(f"python{minor}"):
        return found
    raise NotFound(
        f"the job had Python {version}, here is {sys.version.split()[0]}, and no python{minor} is on PATH; install it, "
        "or name another one with --python PATH"
    )


def _known_to_lack(place: Path) -> dict[str, str] | None:
    """What an earlier replay could not get; None where the environment is not there, or half of it."""
    with suppress(OSError, ValueError, AttributeError):
        if os.access(place / "bin" / "python", os.X_OK):
            return {str(name): str(why) for name, why in json.loads((place / DONE).read_bytes())["missing"].items()}
    return None


def _make(base: str, place: Path) -> None:
    program = requirements.uv()
    # uv would fetch an interpreter from elsewhere where it does not know this one
    command = [program, "venv", "--quiet", "--no-python-downloads", "--python", base] if program else None
    try:
        made = [*(command or [shutil.which(base) or base, "-m", "venv", "--without-pip"]), str(place)]
        done = run_installer(made, BUILD_S, _plain_environment())
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreError(f"{base} cannot make a virtual environment in {place}: {error}") from None
    if done.returncode != 0:
        said = requirements.complaint(done.stderr + done.stdout)
        if not (done.stderr + done.stdout).strip() or not os.access(place / "bin" / "python", os.X_OK):
            said += f"; is {base} a Python with the module venv? `{base} --version` should name one"
        raise StoreError(f"{base} cannot make a virtual environment in {place}: {said}")


def _install(wanted: Mapping[str, str], place: Path, say: Callable[[str], object]) -> dict[str, str]:
    """Install lines of a lock; those that cannot be had, with the reason. Halves what fails until one is left."""
    say(f"installing {plural(len(wanted), 'package')}")
    said = _try(wanted, place)
    if not said:
        return {}
    names = list(wanted)
    if len(names) == 1:
        return {names[0]: said}
    half = len(names) // 2
    missing: dict[str, str] = {}
    for part in (names[:half], names[half:]):
        missing |= _install({name: wanted[name] for name in part}, place, say)
    return missing


def _try(wanted: Mapping[str, str], place: Path) -> str:
    """Install these lines; what the installer complains of, "" where all is well."""
    listed = place / "requirements.txt"
    write_private(listed, "\n".join([*wanted.values(), ""]).encode())
    python = str(place / "bin" / "python")
    if program := requirements.uv():
        command = [program, "pip", "install", "--python", python, "--no-deps", "--quiet", "-r", str(listed)]
    else:
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--no-compile"]
        command = [*requirements.pip(), "--python", python, "install", "--no-deps", *quiet, "-r", str(listed)]
    try:
        done = run_installer(command, BUILD_S, _plain_environment())
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return requirements.complaint(done.stderr + done.stdout) if done.returncode else ""


def _plain_environment() -> dict[str, str]:
    """Variables without those that lend an interpreter the packages of another one."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _other(place: Path, found: record.Fingerprint, made: EnvironmentLock) -> list[parity.Difference]:
    """Where the environment is not what was locked, to the digest of each package's files."""
    there: dict[str, Any] = {name: one for name, one in found["packages"].items() if name in made.lines}
    path = [str(folder) for folder in place.glob("lib/python*/site-packages")]
    here = {name: one.to_json() for name, one in installed(path, RecordCache(None)).items() if name in there}
    there = {name: one for name, one in there.items() if name in here}
    return parity.of_members({"packages": there}, {"packages": here})
