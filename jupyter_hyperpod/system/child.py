"""A process that ends with the one that has started it, whatever way that ends."""

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
    """From now on, end when the process ``parent`` does (0: do not); False where it has ended already."""
    if not parent:
        return True
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
