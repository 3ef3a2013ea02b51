"""Reads what a loss function returns: a mean loss, or a sum and its weight, and metrics beside either.

A loss function returns ``loss``, ``(loss, metrics)``, ``(loss_sum, weight)`` or ``(loss_sum, weight, metrics)``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ...core.errors import TrainingError

MOST_METRICS = 64
LONGEST = 1536  # bytes of all names of metrics together, as JSON
LEAST, MOST = 1e-100, 1e100  # of a weight: sums and quotients of such numbers are finite
FORMS = "return loss, or loss, metrics, or loss_sum, weight, or loss_sum, weight, metrics"


@dataclass(frozen=True)
class Form:
    """What the values are: whether the loss is ``weighted``, and the names of the metrics, sorted."""

    weighted: bool
    metrics: tuple[str, ...]

    @property
    def text(self) -> bytes:
        """The form as JSON."""
        return json.dumps([self.weighted, *self.metrics]).encode()

    @cached_property
    def number(self) -> int:
        """A hash of 48 bits, never 0."""
        return int.from_bytes(hashlib.sha256(self.text).digest()[:6], "big") or 1

    def __str__(self) -> str:
        values = ["loss_sum", "weight"] if self.weighted else ["loss"]
        return ", ".join(values + ([f"metrics with {', '.join(self.metrics)}"] if self.metrics else []))


def form_of(text: bytes) -> Form:
    """Inverse of `Form.text`."""
    weighted, *names = json.loads(text)
    return Form(weighted, tuple(names))


PLAIN = Form(False, ())


@dataclass(frozen=True)
class Returned:
    """What one micro-batch returned. ``weight`` is 1 where the loss is a mean."""

    loss: Any  # a scalar tensor; anything where the weight is 0
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    form: Form = PLAIN


def read(value: Any) -> Returned:
    """Read what a loss function returned. The loss is checked for its shape where it counts.

    Raises TrainingError for weights that no mean can be computed with, metrics that are no numbers, and other forms.
    """
    if not isinstance(value, tuple):
        return Returned(_scalar(value))
    *values, last = value
    metrics = _metrics(last) if isinstance(last, Mapping) else {}
    values = values if isinstance(last, Mapping) else [*values, last]
    if len(values) not in (1, 2):
        raise TrainingError(f"the loss function returned {len(value)} values; {FORMS}")
    form = Form(len(values) == 2, tuple(metrics))
    weight = _weight(values[1]) if form.weighted else 1.0
    if not weight:
        return Returned(values[0], 0.0, dict.fromkeys(metrics, 0.0), form)
    return Returned(_scalar(values[0]), weight, metrics, form)


def described(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, requires_grad={value.requires_grad}"
    return f"a {type(value).__name__}"


def with_loss(value: Any, loss: Any) -> Any:
    """What a loss function returned, with another loss."""
    return (loss, *value[1:]) if isinstance(value, tuple) and value else loss


def loss_in(value: Any) -> Any:
    """The loss in what a loss function returned."""
    return value[0] if isinstance(value, tuple) and value else value


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise TrainingError(
            f"the loss function returned {described(loss)}; expected a scalar tensor that depends on the model: {FORMS}"
        )
    return loss


def _weight(value: Any) -> float:
    number = _number(value)
    if number is None or not (number == 0 or LEAST <= number <= MOST):
        shown = described(value) if number is None else f"{number:g}"
        raise TrainingError(
            f"the weight of the loss is {shown}; expected a number, or a tensor of one number, such as the number "
            f"of tokens that count: 0, or from {LEAST:g} to {MOST:g}"
        )
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise TrainingError(
            "the weight of the loss depends on the model, and it gets no gradient: detach it, return loss_sum, "
            "weight.detach()"
        )
    return number


def _metrics(values: Mapping[Any, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in sorted(values, key=str):
        number = _number(values[name])
        if not isinstance(name, str) or number is None:
            raise TrainingError(
                f"the metric {name!r} is {described(values[name])}; expected numbers, or tensors of one number, by name"
            )
        found[name] = number
    if len(found) > MOST_METRICS or len(Form(True, tuple(found)).text) > LONGEST:
        raise TrainingError(
            f"the loss function returned {len(found)} metrics; expected at most {MOST_METRICS}, with names of together "
            f"at most {LONGEST} bytes"
        )
    return found


def _number(value: Any) -> float | None:
    """A number, or the number in a tensor or an array of one; None for anything else."""
    if isinstance(value, (str, bytes)):
        return None
    if getattr(value, "numel", None) is None and getattr(value, "size", 1) != 1:
        return None
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        return None
