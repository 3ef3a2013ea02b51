"""Files that each member empties as it opens them, though others may read from them: arrays in memory maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ....core.errors import TrainingError
from ..own_files import are_apart, is_made_by_tempfile
from ..walk import Walk
from .reads import Flow
from .source import Program

KIND = "emptied"  # of what a walk has noted
EMPTIED = (
    "{place}: {name} is a file that numpy.memmap opens with mode='w+', which empties it: a member that joins would "
    "empty it while others read from it. Where the file is missing, write it under another name and rename it, and "
    "open it with mode='r'"
)


def is_emptied(array: Any) -> bool:
    """Whether an array is a file that was emptied as it was opened, and that other members have, too.

    Where nodes are machines, these are the files of the working directory: others may be on a disk of the machine.
    """
    made = str(getattr(array, "filename", None) or "") if getattr(array, "mode", "") == "w+" else ""
    if not made or is_made_by_tempfile(made) or str(os.getpid()) in made:
        return False
    return not are_apart() or Path.cwd() in Path(made).resolve().parents


def refuse_emptied(walk: Walk) -> None:
    """Raise TrainingError where the training depends on such a file."""
    found = {path: noted for path, noted in walk.found.items() if noted.kind == KIND}
    program = Program(walk) if found else None
    for path, noted in found.items():
        if program is not None and program.flow(path, noted) is Flow.TRAINING:
            raise TrainingError(EMPTIED.format(place=program.place(noted.name), name=noted.name))
