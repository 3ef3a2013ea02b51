"""Reads Jupyter's files of configuration as its server does, also those in Python: what they say of an extension."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ANSWER_S = 60.0
BASES = ("jupyter_config", "jupyter_server_config")  # the second counts more
# Runs in a process of its own: a file in Python may print, change the process, or end it.
_READ = """
import json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from traitlets.config.loader import ConfigFileNotFound, JSONFileConfigLoader, LazyConfigValue, PyFileConfigLoader
name, bases, folders = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
said, problems = {}, []
for base in bases:
    for folder in reversed(folders):
        for kind, end in ((PyFileConfigLoader, ".py"), (JSONFileConfigLoader, ".json")):
            path = os.path.join(folder, base + end)
            try:
                found = kind(base + end, path=folder).load_config().get("ServerApp", {}).get("jpserver_extensions")
            except ConfigFileNotFound:
                continue
            except BaseException as error:
                problems.append([path, str(error) or type(error).__name__])
                continue
            if isinstance(found, LazyConfigValue):
                found = {key: [value, path] for key, value in found.get_value({}).items()}
                said = {**said, **found}
            elif isinstance(found, dict):
                said = {key: [value, path] for key, value in found.items()}
json.dump([said.get(name), problems], answer)
answer.flush()
os._exit(0)
"""


@dataclass(frozen=True)
class Said:
    """Whether files switch an extension on, which file decides (``None``: none names it), and files with an error."""

    wanted: bool
    path: Path | None
    problems: tuple[str, ...] = ()


def said_of(extension: str, folders: Sequence[Path]) -> Said:
    """What ``jupyter_config`` and ``jupyter_server_config``, in Python or JSON, say: it counts more than ``.d``."""
    files = [folder / f"{base}{end}" for folder in folders for base in BASES for end in (".py", ".json")]
    there = [path for path in files if path.is_file()]
    if not there:
        return Said(False, None)
    command = [sys.executable, "-P", "-c", _READ, extension, ",".join(BASES), *(str(one.absolute()) for one in folders)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        return Said(False, None, (f"{there[0]}: no answer in {ANSWER_S:g} s",))
    try:
        found, problems = json.loads(done.stdout)
    except ValueError:
        return Said(False, None, (f"{there[0]}: it ends the process, with exit status {done.returncode}",))
    said = tuple(f"{path}: {error}" for path, error in problems)
    return Said(False, None, said) if found is None else Said(bool(found[0]), Path(found[1]), said)
