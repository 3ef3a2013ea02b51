"""Answers one ``plan`` from its parsed options, for the command line and the magic."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from ..core.events import Event
from . import face
from .calibrate import measure
from .drawing import write_picture
from .regimes import trial_of
from .request import plan_request

Read = Callable[[str], tuple[str, Sequence[Event]]]


def ask(options: argparse.Namespace, read: Read, drawn: bool = False) -> face.PlanReport:
    """Answer parsed options; ``read`` returns a named job's id and events, ``drawn`` always draws the picture.

    Raises SpecError for impossible figures, Conflict where the file of ``--plot`` exists.
    """
    measured = measure(*read(options.calibrate)) if options.calibrate is not None else None
    request, trial = plan_request(options, measured), trial_of(options, measured)
    found = face.answer(request, trial, measured, drawn or options.plot is not None)
    if options.plot is not None:
        write_picture(options.plot, found.picture)
    return found
