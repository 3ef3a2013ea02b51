"""Names lines of a notebook whose cells were joined: by cell and line, as IPython does, with the line itself."""

from __future__ import annotations

import linecache
import traceback
import warnings

from ..storage.joined_cells import JoinedCells


def name_in_traceback(summary: traceback.TracebackException, filename: str, cells: JoinedCells) -> None:
    """Let each frame of ``filename`` name its cell, and the line there. Causes and groups, too."""
    for frame in summary.stack:
        place = cells.at(frame.lineno) if frame.filename == filename and frame.lineno else None
        if place is None or frame.lineno is None:
            continue
        _ = frame.line  # read now, while the frame still names the joined source
        below = place.line - frame.lineno
        frame.filename, frame.lineno = place.file, place.line
        if frame.end_lineno is not None:
            frame.end_lineno += below
    if getattr(summary, "filename", None) == filename:
        line = int(getattr(summary, "lineno", 0) or 0)
        if place := cells.at(line):  # of a SyntaxError
            summary.filename, summary.lineno = place.file, str(place.line)
    for other in (summary.__cause__, summary.__context__, *(getattr(summary, "exceptions", None) or ())):
        if other is not None:
            name_in_traceback(other, filename, cells)


def name_in_warnings(source: str, cells: JoinedCells) -> None:
    """Let warnings about lines of the file ``source`` name the cell, too."""
    plain = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if filename == source and (place := cells.at(lineno)):
            line = linecache.getline(filename, lineno) if line is None else line
            filename, lineno = place.file, place.line
        return plain(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
