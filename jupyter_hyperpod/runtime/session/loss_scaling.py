"""Scales losses with the GradScaler that was given to the session, and refuses one that the program uses itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import torch

from ...core.errors import SpecError, TrainingError
from ...policy.guard import StepReading

_STEPS = ("step", "unscale_", "update")  # what the session does itself
_OWN = (*_STEPS, "scale", "state_dict", "load_state_dict")
_SMALLEST = float(np.finfo(np.float32).tiny)
SCALED = (
    "the loss function scales its loss with a {kind}, and hp.Session would train on the scaled loss: return the loss "
    "as it is, and give the scaler to the session, hp.Session(..., scaler=scaler). torch.autocast with bfloat16 needs "
    "none; GradScaler(enabled=False) may stay"
)
STEPPED = (
    "scaler.{method}() was called, and the session does that in step.run(): it scales each loss, unscales the "
    "gradient, skips a step that overflows and updates the scale. Leave scaler.unscale_(), scaler.step() and "
    "scaler.update() out"
)
NO_LOWER = (
    "the gradient of step {step} is not finite although the loss scale has fallen to {scale:g}: lowering it does not "
    "help. Look for a division by zero, a logarithm of 0, or numbers too large for float16 in the model itself"
)


class LossScaling:
    """The session's GradScaler, or none. Its state is part of the training state; ``runs`` per step share it.

    Every member takes the same decision, because all see the same bits of the reduced gradient.
    """

    def __init__(self, scaler: Any = None, runs: int = 1) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._given = scaler
        self._runs = runs
        self._overflowed = False  # in an earlier run of the present step

    @property
    def is_on(self) -> bool:
        """Whether losses are scaled."""
        return self._scaler is not None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss whose gradient is computed."""
        if self._given is not None and "step" not in vars(self._given):
            vars(self._given).update({name: _refusing_to(name) for name in _STEPS})
        if self._scaler is None:
            return loss
        scaled: torch.Tensor = self._scaler.scale(loss)
        return scaled

    def inverse(self) -> float:
        """What a gradient is multiplied with to be unscaled, rounded to float32 as torch does."""
        return float(np.float32(1.0 / self._scale))

    def to_judge(self, reading: StepReading) -> StepReading:
        """What the guard judges: a gradient that overflows is the scaler's business, a loss that does is not."""
        return replace(reading, finite=reading.finite or self.is_on)

    def overflow(self, reading: StepReading) -> str:
        """Why the optimizer is not stepped, or nothing."""
        if not self.is_on or reading.finite:
            return ""
        return (
            f"the gradient of step {reading.step} is not finite with a loss scale of {self._scale:g}: "
            "its update is not applied, and the scale is lowered"
        )

    def update(self, reading: StepReading) -> None:
        """A run is over. After the last one of a step raise or lower the scale, as `GradScaler.update` does.

        Raises TrainingError where the scale cannot be lowered any more.
        """
        if self._scaler is None:
            return
        self._overflowed = self._overflowed or not reading.finite
        if reading.step % self._runs:
            return
        state = self._scaler.state_dict()
        scale, sound = state["scale"], state["_growth_tracker"] + 1
        if self._overflowed:
            scale, sound = scale * state["backoff_factor"], 0
            if scale < _SMALLEST:
                raise TrainingError(NO_LOWER.format(step=reading.step, scale=state["scale"]))
        elif sound == state["growth_interval"]:
            raised = scale * state["growth_factor"]
            scale, sound = (raised if raised <= np.finfo(np.float32).max else scale), 0
        self._overflowed = False
        self._scaler.load_state_dict(state | {"scale": float(np.float32(scale)), "_growth_tracker": sound})

    def as_dict(self) -> dict[str, Any]:
        """The state of the scaler, and whether this step has overflowed; empty without one."""
        return {} if self._scaler is None else {"overflowed": self._overflowed, **self._scaler.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Load what `as_dict` returned."""
        if self._scaler is not None and state:
            self._overflowed = state["overflowed"]
            self._scaler.load_state_dict({name: value for name, value in state.items() if name != "overflowed"})

    def release(self) -> None:
        """The session is over: the program may use the scaler again."""
        for name in _STEPS if self._given is not None else ():
            vars(self._given).pop(name, None)

    @property
    def _scale(self) -> float:
        assert self._scaler is not None
        return float(self._scaler.get_scale())


def refuse_scaler(scaler: Any, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Raise SpecError for what is no GradScaler of torch, and for parameters whose gradients would overflow."""
    if scaler is None:
        return
    kind, own = type(scaler), torch.amp.GradScaler
    if not isinstance(scaler, own):
        raise SpecError(f"scaler is a {kind.__name__}; expected one torch.amp.GradScaler, which serves all optimizers")
    if changed := [name for name in _OWN if getattr(kind, name) is not getattr(own, name)]:
        raise SpecError(
            f"scaler is a {kind.__name__}, which has a {changed[0]}() of its own, and hp.Session does what that of "
            "torch.amp.GradScaler does: pass a torch.amp.GradScaler"
        )
    if scaler.is_enabled() and any(parameter.dtype is torch.float16 for parameter in parameters):
        raise SpecError(
            "parameters are float16, and a GradScaler does not unscale float16 gradients: keep the parameters "
            "float32, and compute in float16 by `with torch.autocast(device, dtype=torch.float16)` in the loss function"
        )


def _refusing_to(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        raise TrainingError(STEPPED.format(method=name))

    return refuse


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
            raise TrainingError(SCALED.format(kind=type(self).__name__))
        return scale(self, outputs)

    return refuse
