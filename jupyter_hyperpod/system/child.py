"""The option ``--parent PID``: a process with it ends when that parent ends, however the parent ends."""

from __future__ import annotations

import argparse

from .processes import follow_parent


def add_parent_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--parent PID``."""
    parser.add_argument("--parent", type=int, default=0, help="end when this process does")


def follows(parent: int) -> bool:
    """From now on, end when the process ``parent`` ends (0: never); False where it has ended already."""
    return not parent or follow_parent(parent)
