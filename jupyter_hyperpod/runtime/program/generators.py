"""The process's own generators of torch, Python and numpy, from which the cell may draw between two steps.

Python and numpy take their first seed from the system, so it differs between members. Where the cell has neither seeded
nor used them before its session, they begin alike on all members, as torch's generator does.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

SEED = 0

_noted: dict[str, object] = {}


def note() -> None:
    """The cell begins: remember the states, to see later whether it has touched the generators."""
    _noted.update(_marks())


def note_numpy() -> None:
    """The cell has imported numpy, whose generator was seeded: remember its state as if it had been there before."""
    _noted["numpy"] = _marks()["numpy"]


def begin() -> None:
    """A session begins: seed the generators that the cell has not touched."""
    untouched = {name for name, mark in _marks().items() if _noted.get(name) == mark}
    if "python" in untouched:
        random.seed(SEED)
    if "numpy" in untouched:
        sys.modules["numpy"].random.seed(SEED)


def states() -> dict[str, Any]:
    """Copies of the present states."""
    torch: Any = sys.modules["torch"]
    return {"torch": torch.get_rng_state(), **_own()}


def put_back(copies: Mapping[str, Any]) -> None:
    """Set the generators to these states."""
    if "torch" in copies:
        sys.modules["torch"].set_rng_state(copies["torch"])
        random.setstate(copies["python"])
    if "numpy" in copies:
        import numpy

        numpy.random.set_state(copies["numpy"])


def _own() -> dict[str, Any]:
    numpy: Any = sys.modules.get("numpy")
    found: dict[str, Any] = {"python": random.getstate()}
    return found if numpy is None else found | {"numpy": numpy.random.get_state(legacy=False)}


def _marks() -> dict[str, object]:
    """What tells one state of a generator from another; the cell waits for it, so nothing is printed."""
    found = _own()
    if "numpy" in found:
        inner = found["numpy"]["state"]
        found["numpy"] = inner["pos"], inner["key"].tobytes(), found["numpy"]["has_gauss"], found["numpy"]["gauss"]
    return found
