"""Makes a process end when its parent ends, however the parent ends."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def add_parent_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--parent PID``."""
    parser.add_argument("--parent", type=int, default=0, help="end when this process does")


def follows(parent: int) -> bool:
    """From now on, end when the process ``parent`` ends (0: never); False where it has ended already."""
    if not parent:
        return True
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
