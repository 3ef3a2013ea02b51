"""Running statistics of batch and instance normalisation, as of one process that computes all micro-batches in order.

In training a layer normalises by its micro-batch alone, so the statistics of a micro-batch do not depend on those of
another. Each micro-batch begins with empty ones; what it leaves is reduced with the gradient, in a place of its own.
With the step every member applies all of them in the order of the micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from ...core.errors import TrainingError

_TORCHS = (_BatchNorm.forward, _InstanceNorm.forward)
_NAMES = ("running_mean", "running_var", "num_batches_tracked")


class Layer:
    """A layer and the place of its statistics: a count of its calls at ``start``, then means and variances."""

    def __init__(self, module: _NormBase, start: int) -> None:
        self.module = module
        self.start = start
        self.end = start + 1 + 2 * module.num_features
        self._kept: dict[str, torch.Tensor | None] | None = None  # the real statistics, during a micro-batch
        self._calls = 0  # in training, in this micro-batch; instance normalisation does not count them
        self._hooks = [module.register_forward_pre_hook(self._before_call)]
        if type(module).forward not in _TORCHS:
            self._hooks.append(module.register_forward_hook(self._after_first_call, with_kwargs=True))

    def begin(self) -> None:
        """A micro-batch begins: with empty statistics, if the layer is in training mode."""
        self._calls = 0
        if self.module.training:
            self._kept = {name: self.module._buffers[name] for name in _NAMES}
            self.module._buffers |= {name: torch.zeros_like(self._tensor(name)) for name in _NAMES}

    def leave(self, into: torch.Tensor) -> None:
        """Write what the micro-batch has left."""
        if self._kept is not None:
            into[self.start] = self._tensor(_NAMES[2]) if isinstance(self.module, _BatchNorm) else self._calls
            into[self.start + 1 : self.end] = torch.cat([self._tensor(name) for name in _NAMES[:2]])

    def end_batch(self) -> None:
        """Put the real statistics back."""
        if self._kept is not None:
            self.module._buffers |= self._kept
            self._kept = None

    def apply(self, left: torch.Tensor) -> None:
        """Go on from the present statistics with what one micro-batch has left, as the layer itself would have."""
        count = int(left[self.start])
        if not count:
            return
        features, momentum = self.module.num_features, self.module.momentum
        tracked = self._tensor(_NAMES[2])
        for place, name in enumerate(_NAMES[:2]):
            running = self._tensor(name)
            begin = self.start + 1 + place * features
            new = left[begin : begin + features].to(running)
            if momentum is None and isinstance(self.module, _BatchNorm):  # the mean of all calls so far
                before = int(tracked)
                running.mul_(before).add_(new * count).div_(before + count)
            else:
                running.mul_((1 - (momentum or 0.0)) ** count).add_(new)
        if isinstance(self.module, _BatchNorm):
            tracked.add_(count)

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self.module._buffers[name]
        assert tensor is not None
        return tensor

    def _before_call(self, module: torch.nn.Module, inputs: object) -> None:
        """A loss function that calls the layer in evaluation mode gets the real statistics."""
        self._calls += module.training
        if not module.training:
            self.end_batch()

    def _after_first_call(self, module: torch.nn.Module, inputs: Any, named: Any, output: Any) -> None:
        """A class with a ``forward()`` of its own was called. Raises TrainingError where its statistics matter there.

        Then empty ones would give another result than the real ones.
        """
        if self._kept is None:
            return
        self._hooks.pop().remove()
        captured = {name: module._buffers[name] for name in _NAMES}
        results = []
        for kept in (torch.zeros_like, torch.ones_like):
            module._buffers |= {name: kept(self._tensor(name)) for name in _NAMES}
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                results.append(module.forward(*inputs, **named))
        module._buffers |= captured
        if isinstance(output, torch.Tensor) and not torch.equal(*results):
            raise TrainingError(
                f"a {type(module).__name__} uses its running statistics in training, and these depend on the "
                "micro-batches before: use BatchNorm, GroupNorm or LayerNorm"
            )

    def release(self) -> None:
        """Leave the layer as it was."""
        for hook in self._hooks:
            hook.remove()


class RunningStatistics:
    """The layers of ``model`` that keep statistics. ``size``: the numbers per micro-batch."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers: list[Layer] = []
        for module in model.modules():
            if (
                isinstance(module, (_BatchNorm, _InstanceNorm))
                and module.track_running_stats
                and module.running_mean is not None
            ):
                self._layers.append(Layer(module, self._layers[-1].end if self._layers else 0))
        self.size = self._layers[-1].end if self._layers else 0

    @contextmanager
    def captured(self) -> Iterator[torch.Tensor]:
        """Let a micro-batch begin with empty statistics; the tensor holds afterwards what it has left (float64)."""
        left = torch.zeros(self.size, dtype=torch.float64)
        try:
            for layer in self._layers:
                layer.begin()
            yield left
            for layer in self._layers:
                layer.leave(left)
        finally:
            for layer in self._layers:
                layer.end_batch()

    def release(self) -> None:
        """The session is over: leave the layers as they were."""
        for layer in self._layers:
            layer.release()

    def apply(self, left: torch.Tensor) -> None:
        """Apply what all micro-batches have left, by row, in their order."""
        with torch.no_grad():
            for row in left if self._layers else ():
                for layer in self._layers:
                    layer.apply(row)
