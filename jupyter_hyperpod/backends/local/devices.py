"""Divides this machine's CUDA devices among its nodes: each node's processes see its own as the first ones.

Not verified on a machine with several GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICES = "/dev"
_DEVICE = re.compile(r"nvidia(\d+)")


def visible(environment: Mapping[str, str], directory: str = DEVICES) -> list[str]:
    """The devices that a process with this environment sees, in its order; CUDA ignores what follows a wrong one."""
    if (chosen := environment.get(VARIABLE)) is not None:
        found: list[str] = []
        for name in map(str.strip, chosen.split(",")):
            if not name or name.startswith("-"):
                break
            found.append(name)
        return found
    numbers: list[int] = []
    with suppress(OSError):
        numbers = sorted(int(named[1]) for name in os.listdir(directory) if (named := _DEVICE.fullmatch(name)))
    return [str(number) for number in numbers]


def shares(devices: Sequence[str], spare: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
    """Node -> its devices; ``spare``: node -> whether it stands by for others. Empty where there is nothing to divide.

    Neighbours go together, and no two nodes get the same while there are enough. Where nodes outnumber devices, they
    share: each gets one, in turn. A node that stands by shares with one that works, whose place it may take.
    """
    working = [name for name, stands_by in spare.items() if not stands_by] or list(spare)
    if len(devices) < 2 or not working:
        return {}
    count, nodes = len(devices), len(working)
    if nodes > count:
        found: dict[str, tuple[str, ...]] = {name: (devices[place % count],) for place, name in enumerate(working)}
    else:
        found = {
            name: tuple(devices[place * count // nodes : (place + 1) * count // nodes])
            for place, name in enumerate(working)
        }
    others = [name for name in spare if name not in found]
    return found | {name: found[working[place % nodes]] for place, name in enumerate(others)}
