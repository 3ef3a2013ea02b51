"""Refuses a loss scaled by a GradScaler, because nothing would unscale the gradients before they are applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from ...core.errors import TrainingError


@contextmanager
def unscaled() -> Iterator[None]:
    """Raise TrainingError where an enabled GradScaler scales anything inside; a disabled one does nothing."""
    original = {kind: vars(kind)["scale"] for kind in _kinds(torch.amp.GradScaler) if "scale" in vars(kind)}
    for kind, scale in original.items():
        kind.scale = _refusing(scale)
    try:
        yield
    finally:
        for kind, scale in original.items():
            kind.scale = scale


def _kinds(kind: Any) -> list[Any]:
    """A class and all its subclasses."""
    return [kind, *(found for derived in kind.__subclasses__() for found in _kinds(derived))]


def _refusing(scale: Any) -> Any:
    @wraps(scale)
    def refuse(self: Any, outputs: Any) -> Any:
        if self.is_enabled():
            raise TrainingError(
                f"the loss function scales its loss with a {type(self).__name__}, and hp.Session would train on the "
                "scaled loss: return the loss as it is. torch.autocast with bfloat16 needs no scaler; "
                "GradScaler(enabled=False) may stay"
            )
        return scale(self, outputs)

    return refuse
