"""Prints to a terminal in colour, with a status line at the bottom; plain text everywhere else."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..system.screen import StatusLine, wants_colour

_CODES = {"good": "32", "warn": "33", "bad": "31", "info": "36", "quiet": "2", "title": "1"}


class Terminal:
    """Standard output and error, with colours and a status line where they fit."""

    def __init__(self) -> None:
        self.out, self.err = sys.stdout, sys.stderr
        self._colour = wants_colour(self.out)
        self._status = StatusLine(self.err)
        self.live = self._status.live

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

    def agrees(self, question: str) -> bool:
        """Whether a person answers yes; a program that reads and writes here is not asked, and has agreed."""
        if not (sys.stdin.isatty() and self.err.isatty()):
            return True
        self.clear()
        print(f"{question} [y/N] ", end="", file=self.err, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def status(self, text: str) -> None:
        """Rewrite the status line; shown on a terminal only."""
        self._status.show(text)

    def clear(self) -> None:
        """Remove the status line."""
        self._status.clear()


def leave_cleanly(number: int, _: object) -> None:
    """A signal handler: what this command has started ends with it."""
    raise SystemExit(128 + number)
