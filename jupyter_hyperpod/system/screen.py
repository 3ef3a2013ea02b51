"""What a stream shows to a person: whether it has colours, whether a line may be rewritten, and a line that is."""

from __future__ import annotations

import os
import shutil
import unicodedata
from typing import TextIO

_CLEAR = "\r\x1b[2K"


def width(text: str) -> int:
    """Return the columns `text` takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wants_colour(stream: TextIO) -> bool:
    """Colour only on a terminal that can, and never where NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def rewrites_lines(stream: TextIO | None) -> bool:
    """Whether a person sees one line that changes: at a terminal that can.

    A notebook's cell that runs this by ``!`` would keep each version of it. ipykernel sets this TERM for what its
    cells start; JupyterLab's terminals have another one.
    """
    if stream is None or not stream.isatty():
        return False
    term = os.environ.get("TERM")
    return term != "dumb" and not ("JPY_PARENT_PID" in os.environ and term == "xterm-color")


class StatusLine:
    """The last line of a terminal, rewritten in place; nothing anywhere else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.live = rewrites_lines(stream)
        self._shown = ""

    def show(self, text: str) -> None:
        """Show `text`, cut to the width of the terminal."""
        if not self.live or text == self._shown:
            return
        full, columns = text, shutil.get_terminal_size().columns - 1
        while width(text) > columns:
            text = text[:-1]
        self._stream.write(f"{_CLEAR}\x1b[2m{text}\x1b[0m" if wants_colour(self._stream) else f"{_CLEAR}{text}")
        self._stream.flush()
        self._shown = full

    def clear(self) -> None:
        """Make room for a line of output."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = ""
