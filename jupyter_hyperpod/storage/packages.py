"""The packages with which a job was submitted: a member that finds others says so, because its results may differ."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

FILE = "packages.json"
SHOWN = 8
OTHERS = (
    "the packages here are not those with which the job was submitted: {changes}. Results may differ from those of "
    "other members; install the same versions, or submit again"
)
_INSTALLED = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")


def installed() -> dict[str, str]:
    """Names and versions of the packages that this interpreter imports, from the names of their folders alone."""
    found: dict[str, str] = {}
    for folder in reversed(sys.path):  # the first one on the path is imported
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                if named := _INSTALLED.fullmatch(entry):
                    found[named["name"]] = named["version"]
    return found


def leave(job: Path) -> None:
    """Write the packages of this interpreter into the job's directory."""
    descriptor = os.open(job / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(installed(), file)


def differences(job: Path) -> str:
    """A sentence that names the packages that differ from those of the job; "" where none does, or none were left."""
    try:
        there = json.loads((job / FILE).read_text())
    except (OSError, ValueError):
        return ""
    here = installed()
    changed = [
        f"{name} {there.get(name, 'not installed')} there, {here.get(name, 'not installed')} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if len(changed) > SHOWN:
        changed = [*changed[:SHOWN], f"and {len(changed) - SHOWN} more"]
    return OTHERS.format(changes="; ".join(changed)) if changed else ""
