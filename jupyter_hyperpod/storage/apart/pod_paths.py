"""Which files a pod brings to its head: those that processes of a node write."""

from __future__ import annotations

import re

from ..mirror.source import EVENTS, LAST, OF_CLIENT
from ..mirror.target import PART
from ..segments import OUTPUT_WRITER

FOLDERS = (EVENTS, "output", "logs")
_OTHERS = "|".join(map(re.escape, (*LAST, *OF_CLIENT)))
FROM_POD = re.compile(rf"{EVENTS}/(?!{_OTHERS}){PART}|(?:output|logs)/{PART}")


def is_from_pod(path: str) -> bool:
    """Whether a pod brings this file."""
    return FROM_POD.fullmatch(path) is not None


def may_go(path: str) -> bool:
    """Whether a file may vanish because the output of its node has reached its cap."""
    return path.startswith(("output/", f"{EVENTS}/{OUTPUT_WRITER}"))
