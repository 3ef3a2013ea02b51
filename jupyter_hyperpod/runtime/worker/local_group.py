"""LocalGroup: the single member of a session outside a job, with the same trajectory as in a job."""

from __future__ import annotations

import select
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

from ...core.errors import TrainingError
from ...policy.batching import holdings_of
from ...policy.growth import BatchTerms, count_at, next_schedule
from ...policy.recovery import MemberState, RecoveryPlan
from ..comm.mesh import PeerLost, Transfer
from ..comm.shared_memory import Token
from ..protocol import facts, orders
from ..protocol.codec import Message
from .group_base import GroupBase, Regroup


class LocalGroup(GroupBase):
    """One member without a cluster: the same trajectory, nothing to recover from."""

    rank = 0
    world_size = 1
    near: frozenset[int] = frozenset()
    neighbours: frozenset[Token] = frozenset()
    session = 1
    generation = 0
    newcomer = False
    waited_s = 0.0  # for peers

    def __init__(self, micro_batches: int, terms: BatchTerms | None = None) -> None:
        super().__init__()
        self._micro_batches, self._terms = micro_batches, terms

    def join(self, opened: facts.SessionOpened, held: Callable[[], MemberState]) -> RecoveryPlan:
        """Begin at once, with every micro-batch. There is no other state to compare with, so `held` is not called."""
        return self._begin()

    def form(self, call: orders.FormGeneration, held: MemberState) -> RecoveryPlan:
        """Begin again, without the unreadable checkpoint."""
        return self._begin()

    def come_back(self, step: int) -> None:
        """Nobody to wait for."""

    def again(self, message: facts.RestoreAsked | facts.CheckpointUnreadable | facts.NewcomersEarly) -> NoReturn:
        """Find the state again. Raises Regroup."""
        raise Regroup(orders.FormGeneration(0, 0, ()))

    def _begin(self) -> RecoveryPlan:
        saved = max(self.checkpoints(), default=None)
        step, loaders = (saved[0], (0,)) if saved is not None else (0, ())
        batches = () if self._terms is None else next_schedule(self._terms, (), step, 0, 0, 1).value
        count = count_at(batches, step) if batches else self._micro_batches
        share = (tuple(range(count)),)
        holdings = holdings_of(((),), share, count)
        found = RecoveryPlan(step, (0,), (), (), ((),), share, holdings, saved, loaders, owners=("solo",))
        return replace(found, batches=batches)

    def poll(self) -> None:
        """Nobody calls."""

    def next_leaf(self, leaf: int) -> None:
        """Nobody calls."""

    def leave_if_asked(self, step: int) -> None:
        """Nobody asks."""

    def touch(self, phase: str, step: int) -> None:
        """Nobody watches."""

    def show_pace(self, step: int, seconds: float) -> None:
        """Nobody compares."""

    def show_times(self, compute_s: float, exchange_s: float, waits_s: float) -> None:
        """Nobody samples."""

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Nobody to exchange with."""

    def wait_for(self, descriptor: int, timeout_s: float | None = None) -> bool:
        """Wait until `descriptor` can be read; False after the timeout."""
        return bool(select.select([descriptor], [], [], timeout_s)[0])

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> NoReturn:
        """There is no peer."""
        raise AssertionError("a session outside a job has no peers") from lost

    def regroup_if_due(self) -> None:
        """Nobody joins."""

    def accuse(self, text: str) -> NoReturn:
        """There is nobody to get a sound state from."""
        raise TrainingError(
            f"silent data corruption: {text}; where that happens again, the loss function itself writes to the "
            "training state, through .data or numpy: write between the steps, under torch.no_grad()"
        )

    def send(self, message: Message) -> None:
        """Nobody listens."""

    def journal(self, kind: str, data: dict[str, Any]) -> None:
        """No journal outside a job."""

    def once(self, name: str) -> bool:
        """There is no other process that could do it again."""
        return True

    def injected(self, kind: str, step: int) -> None:
        """No journal outside a job."""

    def finish(self, step: int, digest: str) -> None:
        """Nobody to wait for."""

    def warn(self, text: str) -> None:
        """Tell the person."""
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        """Nothing to close."""
