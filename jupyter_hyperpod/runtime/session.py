"""hp.Session: a training loop whose trajectory depends on code, data and seed, never on the cluster's history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch

from ..core.errors import SpecError, TrainingError
from ..policy.batching import assign, cover, leaves_of
from . import replicate
from .collectives import PeerLost
from .datacache import IndexedData, indexed, mix, sample_indices
from .inprocess import Go, Group, Held, Regroup, Solo
from .purity import Buffers, refuse_running_statistics, seeded, trained_parameters
from .reduction import Buffer, Layout, Ledger, Reduction, as_bytes
from .worker import current

LossFunction = Callable[[Any], torch.Tensor]


class Step:
    """One optimizer step. ``number`` counts from 1; ``index`` from 0."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self.number = number

    @property
    def index(self) -> int:
        """The step counted from 0."""
        return self.number - 1

    def run(self, loss_function: LossFunction) -> float:
        """Compute this member's micro-batches, reduce, apply the optimizer; return the mean loss of the global batch.

        ``loss_function(batch)`` returns the scalar mean loss of one micro-batch. It is called with the random
        generators seeded by (seed, step, micro-batch), so dropout does not depend on who computes it.
        """
        return self._session._run_step(self.number, loss_function)


class Session:
    """Trains ``model`` with ``optimizer`` on ``data``, on however many members there are.

    ``global_batch`` samples a step are cut into ``global_batch / micro_batch`` micro-batches, fixed for the whole
    run. ``max_grad_norm`` clips the gradient of the global batch; ``scheduler`` steps once a step. Outside a
    job the session trains in this process alone, with the same results. Raises SpecError for settings that
    cannot be trained, TrainingError for a model whose state could depend on the number of members.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        global_batch: int,
        micro_batch: int,
        seed: int = 0,
        max_grad_norm: float | None = None,
        scheduler: Any = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.data: IndexedData = indexed(data)
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.seed = seed
        self.max_grad_norm = max_grad_norm
        self.scheduler = scheduler
        _check(self)
        self.micro_batches = global_batch // micro_batch
        self._parameters = trained_parameters(model, optimizer)
        self._layout = Layout(self._parameters)
        self._ledger = Ledger(self._layout, self.micro_batches)
        self._reduction = Reduction(self._layout, self.micro_batches)
        self._buffers = Buffers(model)
        self._seen = [0] * len(self._parameters)
        self._hooks: list[Any] = []
        for index, parameter in enumerate(self._parameters):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(lambda _, at=index: self._count(at)))
        worker = current()
        # the number of threads is part of the arithmetic: alone, a session uses as many as a rank does by default
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(worker.context.spec.threads if worker is not None else 1)
        self._group: Group | Solo = Group(worker) if worker is not None else Solo()
        self._go: Go | None = None
        self._plan_changed = False
        self._applied: int | None = None  # None: a newcomer without state, until peers have sent it
        self._planned = 0
        self._last: Buffer | None = None  # the reduced gradient of the last step, for members that missed it
        self._last_version: tuple[int, ...] = ()
        self._losses = (0, math.nan)
        self._redone = 0
        self._record: dict[str, Any] | None = None  # of the last step, while rank 0 alone has journaled it
        self._step_began_s = 0.0

    # ---- what a person uses -------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This member's place in the present generation."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """Members in the present generation; it may change at any step."""
        return self._group.world_size

    @property
    def step(self) -> int:
        """Steps applied to the model so far."""
        return self._applied or 0

    def steps(self, count: int) -> Iterator[Step]:
        """Yield the next ``count`` steps. A newcomer begins where its peers are."""
        self._planned += count
        if self._go is None:
            self._join()
        while self.step < self._planned:
            step = Step(self, self.step + 1)
            yield step
            if self.step < step.number:
                raise TrainingError(f"step {step.number} was not run: call step.run(loss_function) once in the loop")

    def log(self, **values: float) -> None:
        """Journal metrics of the step just run (rank 0 speaks for all)."""
        if self.rank == 0:
            numbers = {name: float(value) for name, value in values.items()}
            self._group.journal(
                "metric.logged", {"step": self.step, "values": {k: _finite(v) for k, v in numbers.items()}}
            )

    def digest(self) -> str:
        """SHA-256 (hex) of parameters, buffers, optimizer and scheduler state."""
        return replicate.digest(self._state())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None and self._go is not None:
            self._finish()
        self._group.close()
        for parameter, hook in zip(self._parameters, self._hooks, strict=True):
            parameter.grad = None  # a view of memory that goes now
            hook.remove()
        self._last = None
        self._ledger.release()
        self._reduction.release()
        torch.set_num_threads(self._threads_before)

    # ---- one step -----------------------------------------------------------------------------------------

    def _run_step(self, number: int, loss_function: LossFunction) -> float:
        self._step_began_s = time.monotonic()
        while self.step < number:
            try:
                self._compute(loss_function)
                self._reduce()
            except Regroup as call:
                self._regroup(call)
        self._group.touch("user", self.step)
        return self._losses[1]

    def _compute(self, loss_function: LossFunction) -> None:
        assert self._go is not None
        for leaf in self._go.shares[self._go.rank]:
            self._group.poll()
            if not self._ledger.holds(leaf):
                self._group.touch("compute", self.step)
                self._compute_one(leaf, loss_function)

    def _compute_one(self, leaf: int, loss_function: LossFunction) -> None:
        indices = sample_indices(self.seed, self.step, leaf, self.micro_batch, self.global_batch, len(self.data))
        buffer = self._ledger.blank()
        for parameter, gradient in zip(self._parameters, buffer.gradients, strict=True):
            parameter.grad = gradient
        self._seen = [0] * len(self._parameters)
        with seeded(mix(self.seed, self.step, leaf)), self._buffers.watched():
            loss = loss_function(self.data.batch(indices))
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise TrainingError(
                    f"the loss function returned {_describe(loss)}; expected a scalar tensor that depends on the model"
                )
            loss.backward()
        buffer.meta[0] = loss.detach()
        buffer.meta[1:] = torch.tensor(self._seen, dtype=torch.float64)
        self._ledger.add(leaf, buffer)

    def _reduce(self) -> None:
        assert self._go is not None
        self._group.touch("exchange", self.step)
        try:
            result = self._reduction.reduce(
                self._ledger, self._go.holdings, self._go.rank, self._group.near, self._last, self._group.exchange
            )
        except PeerLost as lost:
            self._group.lost(lost)
        for flat in result.flats[:-1]:
            flat.mul_(1.0 / self.micro_batches)
        self._set_gradients(result)
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.max_grad_norm)
        self._apply(result)
        self._commit()
        if self._plan_changed:
            self._plan_changed, self._redone = False, 0
            self._go = _ordinary(self._go, self.micro_batches)

    def _set_gradients(self, result: Buffer) -> None:
        counts = result.meta[1:].tolist()
        for parameter, gradient, count in zip(self._parameters, result.gradients, counts, strict=True):
            parameter.grad = gradient if count else None

    def _apply(self, result: Buffer) -> None:
        """Step the optimizer with the reduced gradient. Nothing can interrupt this: it polls nobody."""
        self._last, self._last_version = result, result.version
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self._applied = self.step + 1
        self._losses = (self._applied, float(result.meta[0]) / self.micro_batches)
        self._ledger.clear()

    def _commit(self) -> None:
        """Rank 0 journals the step and tells the coordinator; the others keep the record in case rank 0 could not."""
        assert self._go is not None
        took_s = time.monotonic() - self._step_began_s
        number, loss = self._losses
        self._record = {
            "step": number,
            "session": self._group.session,
            "generation": self._go.generation,
            "loss": _finite(loss),
            "loss_hex": loss.hex(),
            "step_time_s": took_s,
            "samples": self.global_batch,
            "world_size": self._go.world_size,
            "assignment": [
                [owner, sorted(leaf for low, high in nodes for leaf in range(low, high))]
                for owner, nodes in zip(self._go.owners, self._go.holdings, strict=True)
            ],
            "redone": self._redone,
        }
        if self._go.rank == 0:
            self._journal_record()
            committed = {"step": number, "generation": self._go.generation, "step_time_s": took_s}
            self._group.say({"type": "committed"} | committed)

    def _journal_record(self) -> None:
        if self._record is not None:
            self._group.journal("step.committed", self._record)
            self._record = None

    # ---- membership ---------------------------------------------------------------------------------------

    def _join(self) -> None:
        opened = {
            "total_steps": self._planned,
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            "parameters": sum(p.numel() for p in self._parameters),
            "state_bytes": self._expected_state_bytes(),
        }
        self._adopt(self._group.join(opened, self._held, self.micro_batches))

    def _regroup(self, call: Regroup) -> None:
        self._adopt(self._group.form(call.message, self._held(), self.micro_batches))

    def _held(self) -> Held:
        nodes = tuple(self._ledger.nodes)
        fresh = self.digest() if self._applied is None else ""
        # an optimizer or zero_grad may have written to it since, and then it is no longer what was applied
        replayable = self._last is not None and self._last.version == self._last_version
        return Held(self._applied, nodes, replayable, fresh)

    def _adopt(self, go: Go) -> None:
        """Do what the plan says until nobody lacks anything; a call in between starts over with the newer plan."""
        while True:
            try:
                self._catch_up(go)
                break
            except Regroup as newer:
                go = self._group.form(newer.message, self._held(), self.micro_batches)
        self._group.touch("compute", self.step)

    def _catch_up(self, go: Go) -> None:
        self._redone += _lost_with_members(self._go, go)
        if self._go is not None:
            self._reduction.renew(self._last)
        self._go, self._plan_changed = go, True
        self._group.touch("exchange", self.step)
        self._reduction.attachments.forget_all_but(self._group.near_pids)
        if go.rank == go.donors[0]:
            self._journal_record()  # the rank 0 that should have may be gone
        if go.replay:
            self._replay(go)
        if go.fresh:
            self._share_state(go)
        if self._applied is None:
            self._applied = go.step

    def _replay(self, go: Go) -> None:
        """Give the last reduced gradient to members that missed the end of its exchange."""
        donor = go.donors[0]
        if go.rank == donor:
            assert self._last is not None
            self._group.exchange([(r, as_bytes(f)) for r in go.replay for f in self._last.flats], [])
        elif go.rank in go.replay:
            result = self._reduction.room(self._last)
            self._group.exchange([], [(donor, as_bytes(flat)) for flat in result.flats])
            self._set_gradients(result)
            self._apply(result)
            self._record = None

    def _share_state(self, go: Go) -> None:
        """Send the whole state to newcomers, striped over all donors."""
        began_s = time.monotonic()
        head = go.donors[0]
        if go.rank in go.donors:
            skeleton, tensors = replicate.pack(self._state() | {"loss": self._losses[1]})
            if go.rank == head:
                text = replicate.encode(skeleton)
                self._group.exchange([(r, replicate.length(text)) for r in go.fresh], [])
                self._group.exchange([(r, memoryview(text)) for r in go.fresh], [])
            part = go.donors.index(go.rank)
            self._group.exchange(replicate.transfers(tensors, part, len(go.donors), go.fresh), [])
        elif go.rank in go.fresh:
            header = bytearray(8)
            self._group.exchange([], [(head, memoryview(header))])
            encoded = bytearray(int.from_bytes(header, "big"))
            self._group.exchange([], [(head, memoryview(encoded))])
            skeleton = replicate.decode(encoded)
            tensors = replicate.blank(skeleton)
            parts = [(d, v) for i, d in enumerate(go.donors) for v in replicate.stripe(tensors, i, len(go.donors))]
            self._group.exchange([], parts)
            self._load(replicate.unpack(skeleton, tensors), go.step)
            took_s = time.monotonic() - began_s
            text_line = (
                f"{replicate.size_bytes(tensors) / 1e6:.1f} MB from {len(go.donors)} peers in {took_s * 1000:.0f} ms"
            )
            self._group.say({"type": "synced", "generation": go.generation, "text": text_line})

    def _state(self) -> dict[str, Any]:
        state = {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        return state

    def _load(self, state: dict[str, Any], step: int) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._ledger.clear()
        self._last = self._record = None
        self._applied = step
        self._losses = (step, state["loss"])

    def _finish(self) -> None:
        """Stay until every member has come to the end, serving those that fell behind."""
        digest = self.digest()
        while True:
            try:
                self._group.finish(self.step, digest)
                return
            except Regroup as call:
                self._regroup(call)

    def _expected_state_bytes(self) -> int:
        """Parameters and buffers, and for Adam-like optimizers their two moments."""
        own = sum(t.numel() * t.element_size() for t in self.model.state_dict().values())
        moments = sum(p.numel() * p.element_size() for p in self._parameters)
        return int(own) + (2 * moments if "betas" in self.optimizer.defaults else 0)

    def _count(self, index: int) -> None:
        self._seen[index] = 1


def _ordinary(go: Go, micro_batches: int) -> Go:
    """The plan of an undisturbed step: contiguous shares, nothing held beforehand."""
    shares = assign(micro_batches, go.world_size)
    holdings = tuple(cover(((leaf, leaf + 1) for leaf in share), micro_batches) for share in shares)
    return replace(go, shares=shares, holdings=holdings, replay=(), fresh=())


def _lost_with_members(before: Go | None, go: Go) -> int:
    """How many micro-batches were given to members that are gone, and now to others: at most so many are redone."""
    if before is None:
        return 0
    gone = [nodes for owner, nodes in zip(before.owners, before.holdings, strict=True) if owner not in go.owners]
    given = {leaf for share in go.shares for leaf in share}
    return len(given & leaves_of(node for nodes in gone for node in nodes))


def _check(session: Session) -> None:
    batch, micro = session.global_batch, session.micro_batch
    if micro < 1 or batch < micro or batch % micro:
        raise SpecError(
            f"global_batch is {batch} and micro_batch {micro}; expected a multiple of micro_batch, at least one"
        )
    if len(session.data) < 1:
        raise SpecError("data is empty")
    refuse_running_statistics(session.model)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, requires_grad={value.requires_grad}"
    return f"a {type(value).__name__}"
