"""Turns a fingerprint into a file of requirements that pip and uv install. Pure, but for hashes from an index.

A fingerprint lies in a file: what is no name, no version and no address never becomes a line.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...core.errors import SpecError
from ...core.units import plural
from ...storage.fingerprint import record
from ...storage.fingerprint.distributions import Distribution, normal
from .installer import run_installer

ASK_S = 900.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_ADDRESS = re.compile(r"(git\+|hg\+|svn\+|bzr\+)?(https?|ssh|file)://[^\s;\\]+")
_TOOLS = dict.fromkeys(("pip", "uv"), "it installs the others, and is not part of what it installs")
_OURS = "jupyter-hyperpod"
NOT_MISSED = frozenset({_OURS, *_TOOLS})  # a job runs without them
_HASHED = re.compile(r"^([A-Za-z0-9._-]+)==\S+((?:\s*\\\n\s+--hash=\S+)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EnvironmentLock:
    """The lines of a file of requirements by package, and why others are not in it."""

    lines: Mapping[str, str]
    left_out: Mapping[str, str]
    python: str
    about: str

    @property
    def digest(self) -> str:
        """What the environment is cached by."""
        same = [self.python.split(".")[:2], sorted(self.lines.values()), self.about.partition(", ")[2]]
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]

    def text(self, title: str, hashes: Mapping[str, Sequence[str]] | None = None) -> str:
        """The file. pip refuses hashes for some packages only: where some have none, the others' are comments."""
        found = hashes or {}
        complete = bool(found) and all(found.get(name) for name in self.lines)
        head = [f"# {title}", f"# {self.about}", "# install: uv pip sync FILE, or pip install --no-deps -r FILE"]
        head += [f"# not in this file: {name}: {why}" for name, why in self.left_out.items()]
        if found and not complete:
            without = ", ".join(name for name in self.lines if not found.get(name))
            head.append(f"# hashes are comments, because these packages have none: {without}")
        body = []
        for name, line in self.lines.items():
            marks = [f"--hash=sha256:{value}" for value in sorted(found.get(name, ()))]
            body.append(" \\\n    ".join([line, *marks]) if complete else line)
            body += [] if complete else [f"#   {mark}" for mark in marks]
        return "\n".join([*head, *body, ""])


def lock(found: record.Fingerprint) -> EnvironmentLock:
    """The requirements that make this environment. Raises SpecError where it does not say which packages it has."""
    packages = record.packages_of(found)
    if not packages:
        raise SpecError("the packages of that environment are not known: there is nothing to be locked")
    lines, left_out = {}, {}
    for name, one in sorted(packages.items()):
        if why := _TOOLS.get(name) or _not_had(name, one):
            left_out[name[:100].encode("ascii", "replace").decode().replace("\n", " ")] = why
        else:
            lines[name] = f"{name} @ {one.origin}" if one.origin else f"{name}=={one.version}"
    about, machine = found.get("python") or {}, found.get("machine") or {}
    words = [str(machine.get(part, "")) for part in ("architecture", "libc") if machine.get(part)]
    python = str(about.get("version") or "")
    return EnvironmentLock(lines, left_out, python, _plain(", ".join([f"Python {python or 'unknown'}", *words])))


def _plain(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", text)


def _not_had(name: str, one: Distribution) -> str:
    """Why a package can be had from nowhere; "" where it can."""
    kind, _, folder = one.origin.partition(" ")
    if name == _OURS and (kind in ("editable", "folder") or not one.origin):
        return "each job brings it along"
    if kind in ("editable", "folder") and folder:
        how = "installed in editable mode from" if kind == "editable" else "installed from"
        return _plain(f"{how} {folder}; build a wheel of it, or bring the folder with --include")
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(one.version):
        return "its name or version is none that an index has"
    if one.origin and not _ADDRESS.fullmatch(one.origin):
        return "its origin is no address"
    return ""


def uv() -> str | None:
    """The program uv, where it is installed."""
    return shutil.which("uv")


def pip() -> list[str]:
    """The command of a pip. Raises SpecError where there is none."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise SpecError("neither uv nor pip is installed here; run `python -m ensurepip`, or install uv")


def from_index(made: EnvironmentLock, say: Callable[[str], object] = lambda text: None) -> dict[str, list[str]]:
    """SHA-256 of the archives that the index of this machine has for the lines of a lock. ``say``: told what is done.

    Raises SpecError where it lacks one, or needs longer than a quarter of an hour.
    """
    found = _in_addresses(made)
    if program := uv():  # it tells those of all platforms
        rest = _without(made, found)
        say(f"asking the package index with uv for the hashes of {plural(len(rest), 'package')}")
        found |= _told_by_uv(program, rest)
    if rest := _without(made, found):
        say(
            f"asking the package index with pip for the hashes of {plural(len(rest), 'package')}; pip downloads what "
            "it does not have, which may take minutes"
        )
        found |= _told_by_pip(rest)
    return found


def _without(made: EnvironmentLock, found: Mapping[str, Sequence[str]]) -> list[str]:
    return [line for name, line in made.lines.items() if not found.get(name)]


def _told_by_uv(program: str, lines: Sequence[str]) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "pip", "compile", "--no-deps", "--generate-hashes", "--quiet", "--no-header"]
        said = _run([*command, "--no-annotate", str(_listed(folder, lines))])
    return {normal(name): re.findall(r"sha256:(\w+)", marks) for name, marks in _HASHED.findall(said)}


def _told_by_pip(lines: Sequence[str]) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "report.json"
        wanted = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--no-input"]
        more = ["--disable-pip-version-check", "--report", str(answer), "-r", str(_listed(folder, lines))]
        _run([*pip(), *wanted, *more])
        report: dict[str, Any] = json.loads(answer.read_bytes())
    found = {}
    for one in report.get("install", []):
        digest = one.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256")
        found[normal(one["metadata"]["name"])] = [digest] if digest else []
    return found


def _listed(folder: str, lines: Sequence[str]) -> Path:
    path = Path(folder) / "requirements.txt"
    path.write_text("\n".join([*lines, ""]))
    return path


def _in_addresses(made: EnvironmentLock) -> dict[str, list[str]]:
    pairs = ((name, line.partition("#sha256=")[2]) for name, line in made.lines.items())
    return {name: [digest] for name, digest in pairs if digest}


def _run(command: list[str]) -> str:
    try:
        done = run_installer(command, ASK_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise SpecError(f"the package index cannot be asked: {error}") from None
    if done.returncode != 0:
        raise SpecError(f"the package index does not have all of it: {complaint(done.stderr)}; lock without --hashes")
    return done.stdout


def complaint(said: str) -> str:
    """The line in which pip or uv says what is wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "× ", "╰─▶", "because"))]
    return _without_credentials((errors or lines or ["it said nothing"])[-1])[:300]


def _without_credentials(text: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]*@", "", text)
