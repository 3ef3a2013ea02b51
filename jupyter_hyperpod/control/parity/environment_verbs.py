"""``env show``, ``diff``, ``lock`` and ``replay``, for the command line and the magics alike."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.errors import SpecError, StoreError
from ...core.units import format_duration, plural
from ...policy import parity
from ...storage.fingerprint import record
from ...storage.store import Store
from .. import lookup
from ..text_tables import Answer, Cell, Table
from . import requirements
from .replay import replay

HELP = "show in which environment a job was submitted, compare it, lock it, build it again"
HERE = "."
ACTIONS = ("show", "diff", "lock", "replay")
Say = Callable[[str], object]
_LOCK_ONLY = ("hashes", "output")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``env``."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="show, diff, lock or replay")
    job = "id or name of a job, or . for the environment here (default: .; in a notebook its last job)"
    parser.add_argument("job", nargs="?", metavar="JOB", help=job)
    parser.add_argument("other", nargs="?", metavar="OTHER", help="diff: with what to compare (default: .)")
    parser.add_argument("--all", action="store_true", help="show: each package and variable, too")
    parser.add_argument(
        "--hashes",
        action="store_true",
        help="lock: ask the package index for the hashes of its archives, which pip and uv then insist on",
    )
    parser.add_argument("--output", metavar="FILE", help="lock: a new file instead of the screen")
    parser.add_argument(
        "--python", metavar="PATH", help="replay: the Python to build with (default: one like the job's)"
    )


def run(options: argparse.Namespace, store: Store, last_job: str = "", say: Say = lambda text: None) -> Answer:
    """Carry out an action. Raises SpecError, NotFound or StoreError."""
    _check(options)
    name = options.job or last_job or HERE
    if options.action == "diff" and name == HERE and options.other is None:
        raise SpecError("env diff needs a job to compare the environment here with: `env diff JOB`")
    title, found = recorded(store, name)
    if options.action == "show":
        return _show(title, found, options.all)
    if options.action == "diff":
        return _diff(title, found, *recorded(store, options.other or HERE))
    if options.action == "lock":
        return _lock(title, found, options.hashes, options.output, say)
    return _replay(store, title, found, options.python or "", say)


def _check(options: argparse.Namespace) -> None:
    of = {"all": "show", "hashes": "lock", "output": "lock", "python": "replay", "other": "diff"}
    for option, action in of.items():
        if getattr(options, option) not in (None, False) and options.action != action:
            shown = "a second job" if option == "other" else f"--{option}"
            raise SpecError(f"{shown} belongs to `env {action}`, not to `env {options.action}`")


def recorded(store: Store, name: str) -> tuple[str, record.Fingerprint]:
    """The title and the fingerprint of a job's environment, or of the one here, for ``.``. Raises NotFound."""
    if name == HERE:
        cache = record.cache_of(store) if store.root.is_dir() else None
        return "here", record.take(_here(), cache=cache)
    job_id = lookup.job_id(store, name)
    job = store.job(job_id)
    found, spec = record.of_job(job.path), job.spec()
    return job_id, {**found, "given": sorted({*spec.env, *spec.env_from})}


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _show(title: str, found: record.Fingerprint, everything: bool) -> Answer:
    python, git = found.get("python") or {}, found.get("git") or {}
    machine, devices = found.get("machine") or {}, found.get("devices") or {}
    packages = record.packages_of(found)
    rows: list[tuple[str, str]] = [
        ("environment of", title),
        ("digest", parity.digest(found) or "none, because some of it is not known: `env diff` compares what is"),
        ("Python", f"{python.get('version', 'unknown')} {python.get('implementation', '')}, {python.get('kind', '')}"),
        ("interpreter", str(python.get("executable", ""))),
        (
            "packages",
            f"{len(packages)}, {sum(bool(one.content) for one in packages.values())} with a digest of their files",
        ),
        ("project", _git_sentence(git)),
        *((name, str(value)) for name, value in {**machine, **devices}.items()),
        ("variables", f"{len(found.get('variables') or ())} names, no values"),
    ]
    if everything:
        rows += [(f"file {name}", str(digest)) for name, digest in (git.get("files") or {}).items()]
        rows += [(name, " ".join(filter(None, (one.version, one.origin)))) for name, one in packages.items()]
        rows += [("variable", name) for name in found.get("variables") or ()]
    record_ = {"environment": title, "digest": parity.digest(found) or None, **found}
    return Answer(record_, Table(("WHAT", "FOUND"), [(Cell(name, "quiet"), value) for name, value in rows if value]))


def _git_sentence(git: dict[str, Any]) -> str:
    if not git:
        return "not in a repository of git"
    if not git.get("known"):
        return f"{git.get('root', '')}: git did not say in time"
    changed = len(git.get("files") or {}) + int(git.get("more", 0))
    state = f", {plural(changed, 'file')} changed and not committed" if changed else ", nothing uncommitted"
    return f"{git.get('commit', '')[:12]} on {git.get('branch', '')}{state}"


_TONES = {0: "bad", 1: "bad", 2: "warn", 3: "warn"}


def _diff(title: str, there: record.Fingerprint, other: str, here: record.Fingerprint) -> Answer:
    found, unknown = parity.differences(there, here), parity.unknown(there, here)
    rows = [(Cell(one.name, _TONES.get(one.rank, "")), one.there, one.here, one.change) for one in found]
    same = "no difference in what was compared" if unknown else "no difference"
    table = Table(("WHAT", title.upper() if title == "here" else title, other, "WHAT THAT MAY CHANGE"), rows, same)
    lines = [f"not compared: {', '.join(unknown)}"] if unknown else []
    told = {"same": not found, "there": title, "here": other, "unknown": unknown}
    return Answer(told | {"differences": [one.to_json() for one in found]}, table, lines)


def _lock(title: str, found: record.Fingerprint, hashes: bool, output: str | None, say: Say) -> Answer:
    made = requirements.lock(found)
    text = made.text(f"packages of {title}", requirements.from_index(made, say) if hashes else None)
    answer = {"environment": title, "digest": made.digest, "packages": len(made.lines), "left_out": dict(made.left_out)}
    if output is None:
        return Answer({**answer, "text": text}, lines=[text.rstrip()])
    _write_new(Path(output), text)
    lines = [f"{output}: {plural(len(made.lines), 'package')} of {title}"]
    lines += [f"not in it: {name}: {why}" for name, why in made.left_out.items()]
    return Answer({**answer, "file": str(Path(output).absolute())}, lines=lines)


def _write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, whole or not at all. Raises SpecError or StoreError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if os.path.lexists(path):  # asked first, so that nothing is written for it
            raise FileExistsError
        with open(beside, "x") as file:
            file.write(text)
        os.rename(beside, path)
    except FileExistsError:
        raise SpecError(f"{path} is there already; remove it, or choose another name") from None
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; nothing of it is left") from None
    finally:
        beside.unlink(missing_ok=True)


def _replay(store: Store, title: str, found: record.Fingerprint, python: str, say: Say) -> Answer:
    done = replay(store, found, python, say, title)
    took = format_duration(done.took_s)
    lines = [f"built with {done.with_tool} in {took}" if done.built else f"it was there already, found in {took}"]
    lines += [f"could not be had: {name}: {why}" for name, why in done.missing.items()]
    lines += [f"not as it was: {one.name} {one.there} in {title}, {one.here} now: {one.change}" for one in done.other]
    if not done.missing and not done.other:
        lines.append("each package is the same, to the digest of its files where that is known")
    lines.append(f"run a job in it: --python {done.python}")
    answer = {"environment": title, "python": done.python, "digest": done.digest, "built": done.built}
    answer |= {"took_s": round(done.took_s, 3), "with": done.with_tool, "missing": done.missing}
    return Answer(answer | {"other": [one.to_json() for one in done.other]}, lines=lines, ok=not done.missing)
