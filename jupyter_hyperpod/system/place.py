"""The directory of this process, which somebody may have deleted meanwhile."""

from __future__ import annotations

import os

DELETED = " (deleted)"  # what Linux writes behind the name of one that is gone
GONE = "the folder in which this runs was deleted or moved; go to another folder, then try again"


def here() -> str:
    """The directory of this process, by the name that it had where it is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        try:
            return os.readlink("/proc/self/cwd").removesuffix(DELETED)
        except OSError:
            return ""


def is_gone() -> bool:
    """Whether the directory of this process was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
