"""Injects faults into a session: poisons a loss, flips a bit, raises, or ends the process."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import torch

from ...core.errors import SpecError
from .. import faults
from ..comm.shards import is_shard, local
from ..protocol import orders
from ..worker.replica_sync import Group
from .turns import AnyOptimizer

POISON = {"nan": float("nan"), "spike": 1000.0}


class Injected(RuntimeError):
    """The exception that the fault ``exception`` raises in the cell."""


class Injector:
    """The faults of one session. `inject_due` is called before every micro-batch, `poison` with its loss."""

    def __init__(
        self,
        group: Group,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: AnyOptimizer,
    ) -> None:
        self._group = group
        self._parameters = [p for p in parameters if local(p).numel()]
        self._optimizer = optimizer
        self._random = random.Random(os.urandom(8))  # separate, so that the program's random numbers stay the same
        self._poisons: list[str] = []

    def inject_due(self, step: int, rank: int) -> None:
        """Inject the due faults before a micro-batch of ``step``. Raises Injected for ``exception``."""
        for fault in faults.due(step, rank):
            if fault.step is None or self._group.once(f"{fault.kind}-{fault.step}-{rank}"):
                self._inject(fault, step, rank)

    def _inject(self, fault: faults.Armed, step: int, rank: int) -> None:
        if fault.step is not None:
            self._group.injected(fault.kind, step)
        if fault.kind in faults.SIGNALS:
            os.kill(os.getpid(), faults.SIGNALS[fault.kind])
        elif fault.kind == "throttle":
            self._group.send(orders.ThrottleWorker(fault.factor, fault.duration_s))
        elif fault.kind == "preempt":
            self._group.send(orders.PreemptNode())
        elif fault.kind == "exception":
            raise Injected(f"this exception was injected into rank {rank} in step {step}")
        elif fault.kind == "flip-parameter":
            flip(self._random.choice(self._parameters), self._random)
        elif fault.kind == "flip-optimizer":
            self._flip_optimizer()
        else:
            self._poisons.append(fault.kind)

    def poison(self, loss: Any) -> Any:
        """Return the loss of the user's function, poisoned where a fault is due."""
        if not self._poisons or not isinstance(loss, torch.Tensor):
            return loss
        for kind in self._poisons:
            if kind == "flip-gradient":
                self._flip_gradient()
            else:
                loss = loss * POISON[kind]
        self._poisons.clear()
        return loss

    def _flip_gradient(self) -> None:
        def flipped(gradient: torch.Tensor) -> torch.Tensor:
            hook.remove()
            changed = gradient.to_dense() if gradient.layout != torch.strided else gradient.clone()
            flip(changed, self._random)
            return changed

        if any(is_shard(parameter) for parameter in self._parameters):
            raise SpecError("flip-gradient finds no gradient to flip where parameters are sharded; use flip-parameter")
        hook = self._random.choice(self._parameters).register_hook(flipped)

    def _flip_optimizer(self) -> None:
        kept = [value for state in self._optimizer.state.values() for value in state.values()]
        tensors = [value for value in kept if isinstance(value, torch.Tensor) and local(value).numel()]
        if tensors:
            (tensor,) = self._random.choices(tensors, [local(value).numel() for value in tensors])
            flip(tensor, self._random)
        else:
            faults.inject("flip-optimizer")  # there is no state before the first step


def flip(tensor: torch.Tensor, generator: random.Random) -> None:
    """Flip one random bit of a random element in place, unseen by torch; of a sharded tensor, in the part here."""
    tensor = local(tensor)
    with torch.no_grad():
        place = tuple(generator.randrange(length) for length in tensor.shape)
        element = tensor.detach()[place].reshape(1).clone()
        octets = element.view(torch.uint8)
        octets[generator.randrange(octets.numel())] ^= 1 << generator.randrange(8)
        tensor.data[place] = element[0]
