"""Runs a process that may end together with its parent, and that ends at one of our errors with its sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from ..core.errors import HyperpodError
from .processes import follow_parent


def run_child(
    parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], int], arguments: list[str] | None = None
) -> int:
    """Do the work with the options of the command line, or of ``arguments``, and return the exit status.

    With ``--parent PID`` the process ends when that process ends, however it ends; where it has ended already, nothing
    is done.
    """
    parser.add_argument("--parent", type=int, default=0, help="end when this process does")
    options = parser.parse_args(arguments)
    if options.parent and not follow_parent(options.parent):
        return 0
    try:
        return work(options)
    except HyperpodError as error:
        print(error, file=sys.stderr)
        return 1
