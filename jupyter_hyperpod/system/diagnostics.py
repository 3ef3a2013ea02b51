"""Diagnostics of daemons: a line on standard error, and the log files that their processes append to."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from . import portable


def note(text: str) -> None:
    """Write a line of diagnostics; a full disk must not end a daemon."""
    with suppress(OSError, ValueError):
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} [{os.getpid()}] {text}", file=sys.stderr, flush=True)


def open_log(directory: Path, name: str) -> int:
    """Open ``directory/name.log`` to append to; where the disk refuses, nowhere."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | portable.NOT_INHERITED
        return os.open(directory / f"{name}.log", flags, 0o600)
    except OSError as error:
        note(f"no log in {directory}: {error}")
        return os.open(os.devnull, os.O_WRONLY | portable.NOT_INHERITED)
