"""What `Accelerator.prepare` returns: a loader whose loop is a session's, and an optimizer that keeps gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.utils.data import DataLoader

from ..core.errors import SpecError
from ..runtime.session.optimizer_state import OptimizerWatch, load_exactly

SUMS = "sums"  # of gradients over several turns, in the state of the optimizer


class PreparedLoader:
    """A loader that was prepared. ``given``: as the program made it; ``plain``: as accelerate would read it."""

    end_of_dataloader = False
    remainder = -1

    def __init__(self, given: DataLoader[Any], plain: Any, iterate: Callable[[PreparedLoader], Iterator[Any]]) -> None:
        self.given = given
        self.plain = plain
        self._iterate = iterate

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self)

    def __len__(self) -> int:
        return len(self.plain)

    def __getattr__(self, name: str) -> Any:
        if name in ("given", "plain", "_iterate") or name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.plain, name)


class PreparedOptimizer(AcceleratedOptimizer):
    """The optimizer of a session, whose step only adds the gradient of a batch; the program steps it in its loop.

    Gradients that the program has not dropped at the end of a turn are kept for the next one, as torch does.
    """

    is_stepped_by_program = True

    def __init__(self, optimizer: torch.optim.Optimizer, device_placement: bool = True) -> None:
        if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
            raise SpecError(
                f"optimizer is a {type(optimizer).__name__}, which accelerate's loop cannot step here: use hp.Session"
            )
        super().__init__(optimizer, device_placement, None)
        self._watch = OptimizerWatch(optimizer)
        self._has_stepped = False
        self._in_session = False
        self._sums: dict[int, torch.Tensor] = {}

    @contextmanager
    def in_session(self, within: bool = True) -> Iterator[None]:
        """Calls of `step` are the session's, or the program's again."""
        before, self._in_session = self._in_session, within
        try:
            yield
        finally:
            self._in_session = before

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def step(self, closure: Any = None) -> None:
        """Add a gradient, where the session calls it; else step the optimizer, as accelerate does."""
        if self._in_session:
            for place, parameter in enumerate(self._parameters):
                if (kept := self._sums.get(place)) is not None:
                    parameter.grad = kept.clone() if parameter.grad is None else kept + parameter.grad
            return
        self._watch.step(lambda: super(PreparedOptimizer, self).step(closure), first=not self._has_stepped)
        self._has_stepped = True

    def show(self) -> None:
        """A turn begins: let the program see the gradients that were kept, which it may drop."""
        for place, parameter in enumerate(self._parameters):
            kept = self._sums.get(place)
            parameter.grad = None if kept is None else kept.clone()

    def stand_in(self) -> None:
        """Show gradients of zeros where the session has given none.

        The turn is in the state already, which a newcomer was given while it was in its step. What the program does
        with these gradients is undone, but it may want some: `torch.nn.utils.clip_grad_value_` does.
        """
        if all(parameter.grad is None for parameter in self._parameters):
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None

    def settle(self) -> None:
        """A turn has ended, or its step begins: keep the gradients that there are."""
        grads = enumerate(parameter.grad for parameter in self._parameters)
        self._sums = {place: grad.detach().clone() for place, grad in grads if grad is not None}

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, and of gradients that are kept."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state | {SUMS: dict(self._sums)} if self._sums else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        state = dict(state_dict)
        self._sums = {int(place): value.clone() for place, value in state.pop(SUMS, {}).items()}
        load_exactly(self.optimizer, state)
