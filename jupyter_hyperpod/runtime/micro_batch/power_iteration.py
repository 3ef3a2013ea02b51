"""The vectors of spectral normalisation, which each call in training changes by a power iteration.

Each micro-batch begins with those that the step began with. With the step every member takes what the last micro-batch
has left, so that a step makes one power iteration per call in one micro-batch, whoever computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm


class PowerIteration:
    """The vectors of ``model``. ``size``: how many numbers they have."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._places = [(module, name) for module in model.modules() for name in _names(module)]
        self.size = sum(vector.numel() for vector in self._vectors())

    @contextmanager
    def captured(self) -> Iterator[torch.Tensor]:
        """Let a micro-batch change copies; the tensor holds afterwards what it has left (float64)."""
        left = torch.zeros(self.size, dtype=torch.float64)
        kept = self._vectors()
        try:
            self._set([vector.clone() for vector in kept])
            yield left
            if kept:
                left.copy_(torch.cat([vector.reshape(-1) for vector in self._vectors()]))
        finally:
            self._set(kept)

    def apply(self, left: torch.Tensor) -> None:
        """Take what the last micro-batch has left."""
        start = 0
        with torch.no_grad():
            for vector in self._vectors():
                end = start + vector.numel()
                vector.copy_(left[start:end].view_as(vector))
                start = end

    def _vectors(self) -> list[torch.Tensor]:
        return [module.get_buffer(name) for module, name in self._places]

    def _set(self, vectors: list[torch.Tensor]) -> None:
        for (module, name), vector in zip(self._places, vectors, strict=True):
            module._buffers[name] = vector


def _names(module: torch.nn.Module) -> Iterator[str]:
    """The buffers of a module that a power iteration changes."""
    if isinstance(module, _SpectralNorm):
        yield from (name for name in ("_u", "_v") if name in module._buffers)  # a vector's norm needs none
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            yield from (f"{hook.name}_u", f"{hook.name}_v")
