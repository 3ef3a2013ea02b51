"""Prints to a terminal in colour, with a status line at the bottom; plain text everywhere else."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any, TextIO

from ..control.text_tables import width

_CODES = {"good": "32", "warn": "33", "bad": "31", "info": "36", "quiet": "2", "title": "1"}


def wants_colour(stream: TextIO) -> bool:
    """Colour only on a terminal that can, and never where NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _in_a_cell() -> bool:
    """Whether a notebook's cell runs this by ``!``: it keeps each version of a line that is rewritten.

    ipykernel sets this TERM for what its cells start; JupyterLab's terminals have another one.
    """
    return "JPY_PARENT_PID" in os.environ and os.environ.get("TERM") == "xterm-color"


class Terminal:
    """Standard output and error, with colours and a status line where they fit."""

    def __init__(self) -> None:
        self.out, self.err = sys.stdout, sys.stderr
        self._colour = wants_colour(self.out)
        self.live = self.err.isatty() and os.environ.get("TERM") != "dumb" and not _in_a_cell()
        self._shown = ""

    def paint(self, text: str, tone: str) -> str:
        """Return `text` in the colour of `tone`."""
        code = _CODES.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text

    def line(self, text: str = "") -> None:
        """Print a line on standard output, above the status line."""
        self.clear()
        print(text, file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Print a line on standard error, above the status line."""
        self.clear()
        print(text, file=self.err, flush=True)

    def json(self, value: Any, indent: int | None = 2) -> None:
        """Print `value` as JSON: one document, or one line where `indent` is None."""
        self.clear()
        print(json.dumps(value, indent=indent, allow_nan=False), file=self.out, flush=True)

    def answer(self, options: argparse.Namespace, record: Any, *lines: str, ok: bool = True) -> int:
        """Print what a verb has to tell, as `record` with ``--json``, else as `lines`; return the exit status."""
        if options.json:
            self.json(record)
        else:
            for line in lines:
                self.line(line)
        return 0 if ok else 1

    def status(self, text: str) -> None:
        """Rewrite the status line; shown on a terminal only."""
        if not self.live or text == self._shown:
            return
        full = text
        columns = shutil.get_terminal_size().columns - 1
        while width(text) > columns:
            text = text[:-1]
        self.err.write(f"\r\x1b[2K\x1b[2m{text}\x1b[0m" if wants_colour(self.err) else f"\r\x1b[2K{text}")
        self.err.flush()
        self._shown = full

    def clear(self) -> None:
        """Remove the status line."""
        if self._shown:
            self.err.write("\r\x1b[2K")
            self.err.flush()
            self._shown = ""


def leave_cleanly(number: int, _: object) -> None:
    """A signal handler: what this command has started ends with it."""
    raise SystemExit(128 + number)
