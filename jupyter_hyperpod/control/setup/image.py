"""Renders the Dockerfile of an environment, with its lock and what the builder may read. Pure.

A fingerprint lies in a file: nothing of it becomes a word of a shell that does not match a pattern of harmless letters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from ...core.units import few, plural
from ...policy import parity
from ...storage.fingerprint import record
from ..parity.requirements import EnvironmentLock, lock
from .bases import CPU, NEURON, Base, choose, device_of, is_brought
from .versions import table

DOCKERFILE, LOCK, IGNORED, CODE = "Dockerfile", "requirements.txt", ".dockerignore", "code"
ENVIRONMENT, PERSON, UID = "/opt/environment", "hyperpod", 1000
_PATH = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._+@-]*|/\.[A-Za-z0-9][A-Za-z0-9._+-]*){1,30}")
_SYSTEM = ("/usr", "/usr/local", "/", "/opt")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}\.py")
_LOCAL = re.compile(r"\+(cpu|cu\d+)$")
_SHOWN = 8
# everything is kept from the builder but these, and of these what may hold a secret
_DOCKERIGNORE = """\
*
!requirements.txt
!code
**/.git
**/.env*
**/.netrc
**/.aws
**/.ssh
**/*.pem
**/*.key
**/__pycache__
**/.ipynb_checkpoints
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person chooses about an image."""

    device: str = ""  # "": by the environment
    base: str = ""
    uid: int = UID


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of an image by name, the base it begins with, and what is not in it, as sentences."""

    files: Mapping[str, str]
    base: Base
    packages: int
    missing: Sequence[str]


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where an image comes from: the title of its environment, and the code that goes with it, if any."""

    title: str
    fingerprint: record.Fingerprint
    code: str = ""
    filename: str = ""
    hashes: Mapping[str, Sequence[str]] | None = None


def locked(found: record.Fingerprint, device: str) -> EnvironmentLock:
    """The packages that go into an image: those that an index has and the base does not bring. Raises SpecError."""
    made = lock(found)
    lines, left = dict(made.lines), dict(made.left_out)
    for name, line in made.lines.items():
        if " @ file:" in line:
            left[name] = f"installed from the file {line.partition(' @ file://')[2].partition('#')[0]}"
        elif device == NEURON and is_brought(name):
            left[name] = "the base image has its own"
        else:
            continue
        del lines[name]
    return replace(made, lines=lines, left_out=left)


def device_for(found: record.Fingerprint, wish: Wish) -> str:
    """The device that an image is for."""
    return wish.device or device_of(record.packages_of(found), found.get("devices") or {})


def render(source: ImageSource, wish: Wish = Wish()) -> ImageFiles:
    """The files of an image. Raises SpecError where the record does not tell on what it can be built."""
    found = source.fingerprint
    device, packages = device_for(found, wish), record.packages_of(found)
    base = choose(device, found.get("python") or {}, packages, found.get("devices") or {}, wish.base)
    made = locked(found, device if base.brings_environment else CPU)
    missing = list(_missing(found, made, base))
    name = source.filename if _FILE.fullmatch(source.filename) else "cell.py"
    files = {
        DOCKERFILE: _dockerfile(source, base, made, missing, wish.uid, name if source.code else ""),
        LOCK: _lock_text(source, made, base),
        IGNORED: _DOCKERIGNORE,
        f"{CODE}/{name if source.code else 'README'}": source.code or f"What is put here is in /home/{PERSON}/code.\n",
    }
    return ImageFiles(files, base, len(made.lines), missing)


def _complete(source: ImageSource, made: EnvironmentLock) -> bool:
    """Whether each line has a hash, which pip and uv then insist on."""
    known = source.hashes or {}
    return bool(known) and all(known.get(name) for name in made.lines)


def _lock_text(source: ImageSource, made: EnvironmentLock, base: Base) -> str:
    text = made.text(f"packages of {source.title}", source.hashes)
    local = {found[1] for line in made.lines.values() if (found := _LOCAL.search(line.partition(" @ ")[0]))}
    indexes = [f"{table('torch')['index']}/{word}" for word in sorted(local)]
    indexes += [table("neuron")["index"]] if base.device == NEURON else []
    if not indexes:
        return text
    head, body = _split(text)
    return "\n".join([*head, *(f"--extra-index-url {address}" for address in indexes), *body, ""])


def _split(text: str) -> tuple[list[str], list[str]]:
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:at], lines[at:]


def _missing(found: record.Fingerprint, made: EnvironmentLock, base: Base) -> list[str]:
    """What of the environment is not in the image, in one sentence each."""
    said = [f"{name}: {why}" for name, why in made.left_out.items() if name not in ("pip", "uv")]
    python, git = found.get("python") or {}, found.get("git") or {}
    if python.get("kind") == "conda":
        said.append("what conda installed besides packages of Python: it is not recorded")
    elif python.get("kind") == "system":
        said.append("packages of the operating system: they are not recorded")
    if git.get("known") is False:
        said.append("the state of the project: git did not say it in time")
    elif changed := [*(git.get("files") or {})]:
        count = len(changed) + int(git.get("more") or 0)
        names = few([_plain(name) for name in changed], _SHOWN)
        said.append(f"the project: {plural(count, 'file')} changed and not committed ({names})")
    if given := [name for name in found.get("given") or () if str(name).isidentifier()]:
        said.append(f"values of {few(given, _SHOWN)}: give them to the job with --env")
    if base.python and (of_git := [name for name, line in made.lines.items() if " @ git+" in line]):
        said.append(f"git, which {few(of_git, _SHOWN)} need while the image is built; a --base that has it helps")
    return said


def _dockerfile(
    source: ImageSource, base: Base, made: EnvironmentLock, missing: Sequence[str], uid: int, file: str
) -> str:
    found = source.fingerprint
    of = "this machine" if source.title == "here" else source.title
    lines = [f"# The environment of {_plain(of)}: {_plain(made.about)}, {plural(len(made.lines), 'package')}."]
    lines += ["# Build: docker build --tag NAME:TAG .    (or podman, or buildah)"]
    lines += [f"# Not verified: {base.unverified}."] if base.unverified else []
    lines += ["# Not in this image:", *(f"#   {_plain(one)}" for one in missing)] if missing else []
    install = _install(base, "--require-hashes" if _complete(source, made) else "")
    lines += install
    lines += [
        f"RUN groupadd --gid {uid} {PERSON} \\",
        f"    && useradd --uid {uid} --gid {uid} --create-home --no-log-init {PERSON}",
    ]
    if not base.brings_environment:
        lines += _same_place(found.get("python") or {})
    lines += _labels(found)
    lines += [f"WORKDIR /home/{PERSON}/code", f"COPY --chown={uid}:{uid} {CODE}/ ./", f"USER {uid}:{uid}"]
    lines.append(f'CMD ["python", "{file}"]' if file else 'CMD ["python"]')
    return "\n".join([*lines, ""])


def _install(base: Base, hashes: str) -> list[str]:
    """The layers with the packages: they are built again only where the lock has changed."""
    what = " ".join(filter(None, ("install --no-deps", hashes, "--requirement")))
    copied = f"COPY {LOCK} /opt/{LOCK}"
    if base.brings_environment:
        return [f"FROM {base.image}", copied, f"RUN python -m pip {_no_cache(what)} /opt/{LOCK}"]
    if base.build:
        return [
            f"FROM {base.build} AS environment",
            copied,
            f"RUN python -m venv --without-pip {ENVIRONMENT} \\",
            f"    && python -m pip --python {ENVIRONMENT}/bin/python {_no_cache(what)} /opt/{LOCK}",
            "",
            f"FROM {base.image}",
            f"COPY --from=environment {ENVIRONMENT} {ENVIRONMENT}",
            f"ENV PATH={ENVIRONMENT}/bin:$PATH",
        ]
    return [
        f"FROM {table('uv')['image']} AS uv",
        "",
        f"FROM {base.image}",
        "COPY --from=uv /uv /usr/local/bin/uv",
        f"ENV UV_PYTHON_INSTALL_DIR=/opt/python UV_NO_CACHE=1 PATH={ENVIRONMENT}/bin:$PATH",
        f"RUN uv venv --managed-python --python {base.python} {ENVIRONMENT}",
        copied,
        f"RUN uv pip {what} /opt/{LOCK} --python {ENVIRONMENT}/bin/python",
    ]


def _no_cache(what: str) -> str:
    return what.replace("install ", "install --no-cache-dir ", 1)


def _same_place(python: Mapping[str, Any]) -> list[str]:
    """The Python where it was recorded: a job's pods start it by that path."""
    program, prefix = str(python.get("executable") or ""), str(python.get("prefix") or "")
    if not (_PATH.fullmatch(program) and _PATH.fullmatch(prefix)) or ".." in program or program.startswith(ENVIRONMENT):
        return []
    opened = ["chmod 711 /root"] if program.startswith("/root/") else []
    if python.get("kind") == "venv" and prefix not in _SYSTEM and program.startswith(f"{prefix}/bin/python"):
        made = [f"mkdir -p {PurePosixPath(prefix).parent}", f"ln -s {ENVIRONMENT} {prefix}"]
    elif program.startswith(("/usr/bin/", "/usr/local/bin/")):
        return []  # the system's own Python, which others may need as it is
    else:
        starts = f"printf '#!/bin/sh\\nexec {ENVIRONMENT}/bin/python \"$@\"\\n' > {program}"
        made = [f"mkdir -p {PurePosixPath(program).parent}", starts, f"chmod 755 {program}"]
    return ["# where it was when it was recorded, because pods start it by that path", _run([*made, *opened])]


def _run(commands: Sequence[str]) -> str:
    return "RUN " + " \\\n    && ".join(commands)


def _labels(found: record.Fingerprint) -> list[str]:
    git = found.get("git") or {}
    labels = {
        "org.opencontainers.image.revision": str(git.get("commit") or ""),
        "jupyter-hyperpod.environment": parity.digest(found) or "",
    }
    shown = [f'{name}="{value}"' for name, value in labels.items() if re.fullmatch(r"[A-Za-z0-9]{6,64}", value)]
    return [f"LABEL {' '.join(shown)}"] if shown else []


def _plain(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", text)[:200]
