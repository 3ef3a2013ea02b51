"""Frameworks see one process: a session shares the work of that process among all members, so nothing else may."""

from __future__ import annotations

import os

# torchrun's: where they are set, accelerate and Lightning begin process groups of their own
HIDDEN = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def hide_torchrun() -> None:
    """Remove torchrun's variables from the environment of this process."""
    for name in HIDDEN:
        os.environ.pop(name, None)


def micro_batch_of(batch: int, most: int = 8) -> int:
    """Samples per micro-batch where a person has not said it: ``batch`` is cut into up to ``most`` equal parts.

    A part has at least two samples, as batch normalisation needs them. It depends on the batch alone, never on the
    number of members.
    """
    counts = (count for count in range(1, most + 1) if batch % count == 0 and batch >= 2 * count)
    return batch // max(counts, default=1)
