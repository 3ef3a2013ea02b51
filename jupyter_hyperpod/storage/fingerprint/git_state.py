"""The commit of the project in a directory, and which of its files differ from it.

git runs beside other work and gets a limited time: it may need minutes in a huge repository on a slow file system.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_FILES = 200  # that differ and are named
MOST_READ = 4 << 20  # bytes of those that are read in all
MOST_SAID = 1 << 20  # bytes of git's answer
DELETED, UNREAD = "deleted", "not read"
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")


class GitLook:
    """git, asked about a directory; `state` waits for its answer."""

    def __init__(self, directory: str) -> None:
        self._root = _root(directory)
        self._process: subprocess.Popen[bytes] | None = None
        if self._root is not None:
            quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
            # a repository may name a program to be run as its monitor of files
            command = ["git", "-c", "core.fsmonitor=false", "-C", str(self._root), *_STATUS]
            with suppress(OSError):
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **quiet},
                )

    def state(self, within_s: float) -> dict[str, Any]:
        """Root, commit, branch and files that differ; empty outside a repository.

        ``known`` is False where git is missing, refuses or needs longer than ``within_s``.
        """
        if self._root is None:
            return {}
        said = self._answer(within_s)
        if said is None:
            return {"root": str(self._root), "known": False}
        return {"root": str(self._root), "known": True, **_parsed(said, self._root)}

    def _answer(self, within_s: float) -> bytes | None:
        process, end_s = self._process, time.monotonic() + within_s
        if process is None or process.stdout is None:
            return None
        said = b""
        with process.stdout, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(said) < MOST_SAID and selector.select(max(0.0, end_s - time.monotonic())):
                if not (piece := os.read(process.stdout.fileno(), 1 << 16)):
                    return said if process.wait() == 0 else None
                said += piece
            process.kill()
        process.wait()
        return None


def _root(directory: str) -> Path | None:
    """The nearest directory with a ``.git``, at or above this one."""
    here = Path(os.path.abspath(directory))
    return next((path for path in (here, *here.parents) if os.path.lexists(path / ".git")), None)


def _parsed(said: bytes, root: Path) -> dict[str, Any]:
    """Commit, branch and the files that differ, in git's porcelain of version 2."""
    state: dict[str, Any] = {"commit": "", "branch": "", "files": {}, "more": 0}
    budget, skip = MOST_READ, False
    for entry in said.split(b"\0"):
        if skip:
            skip = False  # the former name of a file that was renamed
            continue
        kind = entry[:2]
        if entry.startswith(b"# branch.oid "):
            state["commit"] = entry[13:].decode("ascii", "replace")
        elif entry.startswith(b"# branch.head "):
            state["branch"] = entry[14:].decode(errors="replace")[:200]
        elif kind in (b"1 ", b"2 ", b"u ", b"? "):
            skip = kind == b"2 "
            name = entry.split(b" ", {b"1 ": 8, b"2 ": 9, b"u ": 10, b"? ": 1}[kind])[-1]
            if len(state["files"]) >= MOST_FILES:
                state["more"] += 1
                continue
            digest, size = _digest(os.path.join(os.fsencode(root), name), budget)
            budget -= size
            state["files"][name.decode(errors="replace")[:300]] = digest
    return state


def _digest(path: bytes, budget: int) -> tuple[str, int]:
    """A digest of a file's content and the number of bytes that were read; a word where there is none."""
    try:
        if not os.path.isfile(path):
            return (UNREAD if os.path.lexists(path) else DELETED), 0
        if (size := os.stat(path).st_size) > budget:
            return UNREAD, 0
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(size)).hexdigest()[:16], size
    except OSError:
        return UNREAD, 0
