"""Computes this member's gradients, reduces them over all members, and puts the result on the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from ...core.errors import TrainingError
from ...policy.guard import StepReading
from ...policy.recovery import RecoveryPlan
from ..comm.mesh import all_gather
from ..comm.reduction import Buffer, FinishedNodes, Layout, Reduction, is_finite
from ..comm.shards import around, local
from ..worker.replica_sync import Group
from .checksum import Words
from .gradient_capture import GradientCapture, PartialGradient
from .loss_scaling import unscaled
from .purity import Buffers, seeded
from .running_statistics import RunningStatistics

Loss = Callable[[], torch.Tensor]


class Gradients:
    """Computes micro-batches, reduces them, and keeps the last results for members that missed them."""

    def __init__(self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter], micro_batches: int) -> None:
        self.parameters = list(parameters)
        self.micro_batches = micro_batches
        self.check_finite = False  # whether gradients are checked for values that are not finite
        self._statistics = RunningStatistics(model)
        numbers = micro_batches * (1 + self._statistics.size)
        layout = Layout([local(parameter) for parameter in self.parameters], numbers)
        self.finished = FinishedNodes(layout, micro_batches)
        self.reduction = Reduction(layout, micro_batches)
        self.depth = 1  # a member at most this many steps behind is brought up to date by gradients alone
        self._history: list[tuple[Buffer, tuple[int, ...]]] = []  # reduced gradients, the newest first, as applied
        self._watched: list[tuple[torch.nn.Parameter, torch.Tensor, int]] = []  # shown after a step, with versions
        self._buffers = Buffers(model)
        self._capture = GradientCapture(self.parameters)

    def separate_nodes(self) -> FinishedNodes:
        """Nodes apart from those of the step, for micro-batches that are executed again."""
        return FinishedNodes(self.finished.layout, self.micro_batches)

    def compute(self, leaf: int, seed: int, loss_of_batch: Loss, aside: FinishedNodes | None = None) -> None:
        """Run forward and backward of micro-batch ``leaf`` with every generator seeded by ``seed``.

        The gradient goes into ``finished``, or into the nodes ``aside``. A right sibling is added onto its left one at
        once, which gives the same bits as a later sum. If that fails half-way, or was too early (at most once per
        session), both of them are dropped.
        Raises TrainingError where the loss is no scalar that depends on the model.
        """
        finished = aside or self.finished
        buffer, adding = finished.open(leaf)
        try:
            with seeded(seed, self.parameters[0].device), self._buffers.watched(), self._statistics.captured() as left:
                loss, taken = self._backward(loss_of_batch, buffer, adding, at_once=aside is None)
        except PartialGradient:
            finished.discard(buffer)
            return
        except BaseException:
            finished.discard(buffer)
            raise
        self._note(buffer, adding, loss, leaf, taken, left)
        finished.close(leaf, buffer)

    def _backward(
        self, loss_of_batch: Loss, buffer: Buffer, adding: bool, at_once: bool
    ) -> tuple[torch.Tensor, list[bool]]:
        """Run backward into the buffer; return the loss and which parameters have a gradient."""
        for parameter in self.parameters:
            parameter.grad = None
        with unscaled():
            loss = loss_of_batch()
        if any(parameter.grad is not None for parameter in self.parameters):
            raise TrainingError(
                "the loss function called backward(), which the session does after it: gradients would count twice; "
                "return the loss and leave backward() out"
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TrainingError(
                f"the loss function returned {_describe(loss)}; expected a scalar tensor that depends on the model"
            )
        return loss.detach(), self._capture.backward(loss, buffer, adding, at_once)

    def _note(
        self, buffer: Buffer, adding: bool, loss: torch.Tensor, leaf: int, taken: list[bool], left: torch.Tensor
    ) -> None:
        """Record a micro-batch's loss, which parameters got a gradient, and the statistics that it has left."""
        meta = torch.zeros_like(buffer.meta)
        meta[1 : 1 + len(taken)] = torch.tensor(taken)
        meta[0] = self._losses(meta)[leaf] = loss
        self._left(meta)[leaf] = left
        buffer.meta.add_(meta) if adding else buffer.meta.copy_(meta)

    def reduce(self, plan: RecoveryPlan, group: Group) -> Buffer:
        """The mean gradient of the global batch, the same bits on every member. Raises PeerLost, Regroup."""
        result = self.reduction.reduce(
            self.finished,
            plan.holdings,
            plan.rank,
            group.near,
            self.kept,
            group.exchange,
            1.0 / self.micro_batches,
            self.check_finite,
        )
        if result.meta[-1] and bool(self._losses(result.meta).isfinite().all()):
            self._locate(result, plan, group)
        return result

    def _losses(self, meta: torch.Tensor) -> torch.Tensor:
        """The loss of each micro-batch, a view."""
        begin = 1 + len(self.parameters)
        return meta[begin : begin + self.micro_batches]

    def _left(self, meta: torch.Tensor) -> torch.Tensor:
        """The statistics that each micro-batch has left, a view of shape (micro-batches, size)."""
        begin = 1 + len(self.parameters) + self.micro_batches
        return meta[begin:-1].view(self.micro_batches, self._statistics.size)

    def apply_statistics(self, result: Buffer, skipped: bool) -> None:
        """Apply the running statistics of a step to the model's layers, unless the step was skipped."""
        if not skipped:
            self._statistics.apply(self._left(result.meta))

    def _locate(self, result: Buffer, plan: RecoveryPlan, group: Group) -> None:
        """Find, with all members, the micro-batches that are not finite: their losses in ``meta`` become NaN."""
        own = bytearray(self.micro_batches)
        for low, high in plan.holdings[plan.rank]:
            sound = all(is_finite(gradient) for gradient in self.finished.nodes[low, high].gradients)
            own[low:high] = bytes([not sound]) * (high - low)
        for marks in all_gather(group.exchange, plan.rank, plan.world_size, bytes(own)):
            self._losses(result.meta)[torch.tensor(list(marks), dtype=torch.bool)] = math.nan

    def reading(self, result: Buffer, step: int) -> StepReading:
        """The mean loss and the other numbers for `policy.guard`, equal on every member."""
        loss, losses = float(result.meta[0]) / self.micro_batches, tuple(self._losses(result.meta).tolist())
        return StepReading(step, loss, not result.meta[-1], losses)

    def frozen(self) -> Words:
        """For each parameter, whether it is frozen now, which a loop may change on some members only."""
        return np.array([not parameter.requires_grad for parameter in self.parameters], np.int64)

    def set_gradients(self, result: Buffer) -> None:
        """Set ``grad`` of every parameter that had one in any micro-batch."""
        counts = result.meta[1 : 1 + len(self.parameters)].tolist()
        for parameter, gradient, count in zip(self.parameters, result.gradients, counts, strict=True):
            parameter.grad = around(gradient.to(parameter.device), parameter) if count else None

    def watch_changes(self) -> None:
        """The step is applied; the program may read the gradients until the next step: see `refuse_changes`."""
        shown = ((parameter, parameter.grad) for parameter in self.parameters)
        self._watched = [(parameter, grad, grad._version) for parameter, grad in shown if grad is not None]

    def refuse_changes(self) -> None:
        """Raise TrainingError where the program has changed gradients of an applied step, which has no effect."""
        for parameter, grad, version in self._watched:
            if parameter.grad is grad and grad._version != version and bool(grad.any()):
                raise TrainingError(
                    "gradients were changed after step.run(), which had taken the step already: that has no effect. To "
                    "clip gradients write hp.Session(..., max_grad_norm=1.0); what else changes gradients "
                    "belongs into the loss function"
                )
        self._watched = []

    def clip(self, result: Buffer, max_norm: float) -> None:
        """Scale the gradients down to ``max_norm``, and ``result``, too, which members get that missed the step."""
        torch.nn.utils.clip_grad_norm_(self.parameters, max_norm)
        if self.parameters[0].device.type != "cpu":
            for parameter, gradient in zip(self.parameters, result.gradients, strict=True):
                if parameter.grad is not None:
                    gradient.copy_(local(parameter.grad))

    def keep(self, result: Buffer) -> None:
        """Keep ``result``, which is about to be applied: it may have to be replayed to others."""
        self._history = [(result, result.version), *self._history[: self.depth - 1]]

    @property
    def kept(self) -> list[Buffer]:
        """Results that must not be overwritten, the newest first."""
        return [result for result, _ in self._history]

    @property
    def history(self) -> list[Buffer]:
        """Reduced gradients that can be replayed, the newest first.

        If an optimizer or zero_grad has written to one, it and all older ones differ from what was applied.
        """
        return [result for result, _ in takewhile(lambda entry: entry[0].version == entry[1], self._history)]

    def forget(self) -> None:
        """Drop all computed and reduced gradients, because another state has been loaded."""
        self._history = []
        self.finished.clear()

    def release(self) -> None:
        """Free the memory at the end of the session."""
        for parameter in self.parameters:
            parameter.grad = None  # a view of memory that is freed now
        self._capture.release()
        self._statistics.release()
        self._history, self._watched = [], []
        self.finished.release()
        self.reduction.release()


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, requires_grad={value.requires_grad}"
    return f"a {type(value).__name__}"
