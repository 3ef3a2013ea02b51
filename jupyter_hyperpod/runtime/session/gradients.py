"""Computes this member's gradients, reduces them over all members, and puts the result on the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from ...core.errors import TrainingError
from ...policy.guard import StepReading
from ...policy.recovery import RecoveryPlan
from ..comm.choice import collectives_for
from ..comm.mesh import all_gather
from ..comm.reduction import STOP, Buffer, FinishedNodes, flags_of, is_finite, read_flags
from ..comm.shards import around, local
from ..micro_batch.gradient_capture import GradientCapture, PartialGradient
from ..micro_batch.lanes import LaneStore
from ..micro_batch.places import Places
from ..micro_batch.power_iteration import PowerIteration
from ..micro_batch.returned import Returned, read
from ..micro_batch.running_statistics import RunningStatistics
from ..worker.replica_sync import Group
from .checksum import Words
from .clipping import GradientLimits
from .loss_scaling import LossScaling, unscaled
from .purity import Buffers, seeded
from .turns import AnyOptimizer

Loss = Callable[[], Any]  # what the loss function returns: see `micro_batch.returned`

WEIGHTLESS = (
    "all micro-batches of the step have weight 0, so their losses have no mean: give the session data of which every "
    "global batch has something that counts, or a larger global_batch"
)
SMALL_WEIGHTS = (
    "the loss function returned a second value, a weight by which losses are divided, and the largest of a step is "
    "{largest:.3g}. If it is a metric, return it by name: loss, {{'accuracy': accuracy}}"
)
WEIGHTED_REPLICA = (
    "the loss function returned a weight, and this member is a replica of several ranks, whose gradients are means of "
    "equal weight: return the mean loss, or run without --replica"
)


class Gradients:
    """Computes micro-batches, reduces them, and keeps the last results for members that missed them."""

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        micro_batches: int,
        group: Group,
        lanes: LaneStore | None = None,
        scaling: LossScaling | None = None,
        most: int | None = None,
    ) -> None:
        """``most``: micro-batches of the largest step; the first one has ``micro_batches``."""
        self.parameters = list(parameters)
        self.micro_batches = micro_batches
        most = most or micro_batches
        self._warned = False
        self.stops = False  # whether this member wants the next step to be the last one
        self.check_finite = False  # whether gradients are checked for values that are not finite
        self._statistics = RunningStatistics(model)
        self._group = group
        self._vectors = PowerIteration(model)
        self._lanes = lanes or LaneStore(micro_batches)
        self._scaling = scaling or LossScaling()
        self._places = Places(len(self.parameters), most, self._statistics.size, self._vectors.size)
        self.lay_out()
        self.depth = 1  # a member at most this many steps behind is brought up to date by gradients alone
        self._history: list[tuple[Buffer, tuple[int, ...]]] = []  # reduced gradients, the newest first, as applied
        self._watched: list[tuple[torch.nn.Parameter, torch.Tensor, int]] = []  # shown after a step, with versions
        self._buffers = Buffers(model)
        self._capture = GradientCapture(self.parameters)

    def lay_out(self) -> None:
        """Make the memory for gradients, and for the lanes that there are now. Before the first step."""
        words = self.micro_batches * self._lanes.words
        parts = [local(parameter) for parameter in self.parameters]
        self.collectives = collectives_for(self._group, parts, self._places.numbers, words)
        self.finished = FinishedNodes(self.collectives.layout, self.micro_batches)

    def begin(self, micro_batches: int) -> None:
        """A step of so many micro-batches begins, or goes on."""
        if micro_batches != self.micro_batches:
            self.micro_batches = micro_batches
            self.finished.grow(micro_batches)

    def count(self, result: Buffer) -> int:
        """The micro-batches that a result sums."""
        return self._places.count(result.meta)

    def separate_nodes(self) -> FinishedNodes:
        """Nodes apart from those of the step, for micro-batches that are executed again."""
        return self.finished.apart()

    def compute(self, leaf: int, seed: int, loss_of_batch: Loss, aside: FinishedNodes | None = None) -> None:
        """Run forward and backward of micro-batch ``leaf`` with every generator seeded by ``seed``.

        The gradient goes into ``finished``, or into the nodes ``aside``. A right sibling is added onto its left one at
        once, which gives the same bits as a later sum. If that fails half-way, or was too early (at most once per
        session), both of them are dropped.
        Raises TrainingError where the loss is no scalar that depends on the model: see `micro_batch.returned.read`.
        """
        finished = aside or self.finished
        buffer, adding = finished.open(leaf)
        try:
            with seeded(seed, self.parameters[0].device), self._left() as (statistics, vectors):
                returned = self._returned(leaf, loss_of_batch)
                taken = self._backward(returned, buffer, adding, at_once=aside is None or not adding)
        except PartialGradient:
            finished.discard(buffer)
            return
        except BaseException:
            finished.discard(buffer)
            raise
        meta = torch.zeros_like(buffer.meta)
        self._places.write(meta, leaf, returned, taken)
        self._places.statistics(meta)[leaf] = statistics
        if leaf == self.micro_batches - 1:
            self._places.of(meta, "vectors").copy_(vectors)
        buffer.meta.add_(meta) if adding else buffer.meta.copy_(meta)
        self._keep_lane(buffer, adding, leaf)
        finished.close(leaf, buffer)

    @contextmanager
    def _left(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Watch what a micro-batch does to buffers; afterwards the tensors hold what it has left in some of them."""
        with self._buffers.watched(), self._statistics.captured() as statistics, self._vectors.captured() as vectors:
            yield statistics, vectors

    def _keep_lane(self, buffer: Buffer, adding: bool, leaf: int) -> None:
        if buffer.words is not None:
            if not adding:
                buffer.words.zero_()
            buffer.words.view(self.micro_batches, -1)[leaf] = self._lanes.left()

    def _returned(self, leaf: int, loss_of_batch: Loss) -> Returned:
        """Call the loss function for micro-batch ``leaf`` and read what it returned."""
        for parameter in self.parameters:
            parameter.grad = None
        with unscaled(), self._lanes.open(leaf):
            returned = read(loss_of_batch())
        if any(parameter.grad is not None for parameter in self.parameters):
            raise TrainingError(
                "the loss function called backward(), which the session does after it: gradients would count twice; "
                "return the loss and leave backward() out"
            )
        if returned.form.weighted and self._group.replica > 1:
            raise TrainingError(WEIGHTED_REPLICA)
        return returned

    def _backward(self, returned: Returned, buffer: Buffer, adding: bool, at_once: bool) -> list[bool]:
        """Run backward into the buffer; return which parameters have a gradient."""
        if not returned.weight:
            return self._capture.nothing(buffer, adding)
        return self._capture.backward(self._scaling.scaled(returned.loss), buffer, adding, at_once)

    def reduce(self, plan: RecoveryPlan, group: Group) -> Buffer:
        """The mean gradient of the global batch, the same bits on every member. Raises PeerLost, Regroup.

        Raises TrainingError, on all members, where micro-batches returned different forms, or all have weight 0.
        """
        weights = torch.zeros(self.micro_batches + 1, dtype=torch.float64)
        weights[-1] = STOP if self.stops else 0.0
        for low, high in plan.holdings[plan.rank]:
            weights[low:high] = self._places.of(self.finished.nodes[low, high].meta, "weights")[low:high]
        result = self.collectives.reduce(self.finished, plan.holdings, self.kept, weights, self.check_finite)
        form, largest = self._places.form(result.meta), float(self._places.of(result.meta, "weights").max())
        if not largest:
            raise TrainingError(WEIGHTLESS)
        if form.weighted and largest < 1 and not self._warned:
            self._warned = True
            if group.once("weights-below-1"):
                group.warn(SMALL_WEIGHTS.format(largest=largest))
        if not read_flags(float(result.meta[-1]))[0] and bool(self._losses(result.meta).isfinite().all()):
            self._locate(result, plan, group)
        return result

    def _losses(self, meta: torch.Tensor) -> torch.Tensor:
        """The loss of each micro-batch, a view; of a weighted one the sum."""
        return self._places.of(meta, "losses")

    def apply_left(self, result: Buffer, skipped: bool) -> None:
        """Apply what a step leaves in the model's buffers and in the lanes, unless the step was skipped."""
        if skipped:
            return
        self._statistics.apply(self._places.statistics(result.meta)[: self.count(result)])
        self._vectors.apply(self._places.of(result.meta, "vectors"))
        if result.words is not None:
            self._lanes.apply(result.words.view(self.micro_batches, -1))

    def _locate(self, result: Buffer, plan: RecoveryPlan, group: Group) -> None:
        """Find, with all members, the micro-batches that are not finite: their losses in ``meta`` become NaN."""
        own = bytearray(self.micro_batches)
        for low, high in plan.holdings[plan.rank]:
            sound = all(is_finite(gradient) for gradient in self.finished.nodes[low, high].gradients)
            own[low:high] = bytes([not sound]) * (high - low)
        for marks in all_gather(group.exchange, plan.rank, plan.world_size, bytes(own)):
            self._losses(result.meta)[: len(marks)][torch.tensor(list(marks), dtype=torch.bool)] = math.nan

    def reading(self, result: Buffer, step: int) -> StepReading:
        """The mean loss and the other numbers for `policy.guard`, equal on every member."""
        places, meta = self._places, result.meta
        loss = float(meta[0]) / places.total(meta)
        finite, stops = read_flags(float(meta[-1]))
        return StepReading(step, loss, finite, places.losses(meta), places.metrics(meta), stops)

    def frozen(self) -> Words:
        """For each parameter, whether it is frozen now, which a loop may change on some members only."""
        return np.array([not parameter.requires_grad for parameter in self.parameters], np.int64)

    def set_gradients(self, result: Buffer) -> None:
        """Set ``grad`` of every parameter that had one in any micro-batch."""
        counts = self._places.of(result.meta, "counts").tolist()
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

    def unscale(self, result: Buffer) -> None:
        """Divide the gradients that are set by the loss scale, and say in ``result`` whether they are finite."""
        if not self._scaling.is_on:
            return
        shown = [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        stops = read_flags(float(result.meta[-1]))[1]
        result.meta[-1] = flags_of(all(is_finite(gradient) for gradient in shown), stops)
        inverse = self._scaling.inverse()
        for gradient in shown:
            gradient.mul_(inverse)
        self._take_over(result)

    def clip(self, result: Buffer, limits: GradientLimits, optimizer: AnyOptimizer) -> None:
        """Clip the gradients, and ``result``, too, which members get that missed the step."""
        if limits.clip(self.parameters, optimizer):
            self._take_over(result)

    def _take_over(self, result: Buffer) -> None:
        """Copy gradients that were changed on a device into ``result``; on the CPU they are the same memory."""
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
        self.collectives.release()
