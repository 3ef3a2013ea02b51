"""Copies each gradient of a micro-batch into its buffer while autograd still computes the others.

A gradient is taken from its parameter as soon as it is complete. It is still in the CPU's cache then, and the next
gradient reuses its memory; otherwise backward would need fresh memory as large as the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ..comm.reduction import Buffer
from ..comm.shards import is_shard, local


class PartialGradient(Exception):
    """A gradient was added to others before autograd had completed it, and the sum cannot be undone."""


class GradientCapture:
    """Moves the gradients of ``parameters`` into one buffer after the other."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._early = all(parameter.device.type == "cpu" and not is_shard(parameter) for parameter in parameters)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._buffer: Buffer | None = None
        self._adding = self._repeated = False
        self._taken: list[bool] = []

    def backward(self, loss: torch.Tensor, buffer: Buffer, adding: bool, at_once: bool = True) -> list[bool]:
        """Run backward of ``loss`` and return which parameters got a gradient; the others are zero.

        The buffer is overwritten, or (``adding``) added to. Unless ``at_once``, all gradients are taken at the end.
        Raises PartialGradient, at most once in a session, where nested calls of backward give a parameter its gradient
        in parts, as reentrant checkpointing of a shared layer does.
        """
        if self._early and not self._hooks:  # registered only now, so that the program's own hooks run first
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self._finished, index))
                for index, parameter in enumerate(self._parameters)
                if parameter.requires_grad  # a parameter that is frozen now and trained later is taken at the end
            ]
        self._buffer, self._adding, self._repeated = buffer if at_once else None, adding, False
        self._taken = [False] * len(self._parameters)
        try:
            loss.backward()
            if not self._early:
                self._take_alike(buffer)
            for index, parameter in enumerate(self._parameters):
                if parameter.grad is not None:
                    self._take(buffer, index, parameter)
        finally:
            self._buffer = None
        if self._repeated:
            self.release()
            if adding:
                raise PartialGradient
        self._fill(buffer)
        return self._taken

    def nothing(self, buffer: Buffer, adding: bool) -> list[bool]:
        """What `backward` returns for a loss that does not count: no parameter has a gradient."""
        self._taken, self._adding = [False] * len(self._parameters), adding
        self._fill(buffer)
        return self._taken

    def _fill(self, buffer: Buffer) -> None:
        """Write or add the zeros of parameters that got no gradient."""
        for taken, kept in zip(self._taken, buffer.gradients, strict=True):
            if not taken:
                kept.add_(0.0) if self._adding else kept.zero_()  # x + 0 is not always x: -0 + 0 is 0

    def release(self) -> None:
        """Take gradients only at the end of backward from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._early = [], False

    def _finished(self, index: int, parameter: torch.Tensor) -> None:
        if self._buffer is not None:
            self._take(self._buffer, index, parameter)

    def _take_alike(self, buffer: Buffer) -> None:
        """Take at once what is copied, or added, as it is: a GPU gets a few kernels instead of one per parameter."""
        gradients, kept = [], []
        for index, (parameter, place) in enumerate(zip(self._parameters, buffer.gradients, strict=True)):
            gradient = parameter.grad
            if gradient is not None and not self._taken[index] and _is_alike(gradient, place):
                gradients.append(gradient)
                kept.append(place)
                self._taken[index], parameter.grad = True, None
        if gradients:
            torch._foreach_add_(kept, gradients) if self._adding else torch._foreach_copy_(kept, gradients)

    def _take(self, buffer: Buffer, index: int, parameter: torch.Tensor) -> None:
        gradient, kept, adding = parameter.grad, buffer.gradients[index], self._adding
        parameter.grad = None
        if gradient is None:
            return
        if self._taken[index]:
            self._repeated = adding = True
        self._taken[index] = True
        gradient = local(gradient)
        if gradient.layout != torch.strided:
            gradient = gradient.to_dense()
        kept.add_(gradient.to(kept.device)) if adding else kept.copy_(gradient)


def _is_alike(gradient: torch.Tensor, kept: torch.Tensor) -> bool:
    return (
        not is_shard(gradient)
        and gradient.layout == torch.strided
        and (gradient.dtype, gradient.device, gradient.shape) == (kept.dtype, kept.device, kept.shape)
    )
