"""Assigns loaded tensors to a module's parameters and buffers, after checking the fit before the load."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from ...core.errors import LoaderError
from ...core.units import few
from .plan import LoadPlan
from .tensors import torch_dtype

M = TypeVar("M", bound=nn.Module)
_SHOWN = 5


def check_fit(model: nn.Module, load_plan: LoadPlan, source: str) -> None:
    """Raise LoaderError unless the planned tensors are those of `model`: names, shapes, dtypes.

    A parameter with several names (tied weights) needs one of them.
    """
    wanted = model.state_dict(keep_vars=True)
    planned = {tensor.name: tensor for tensor in load_plan.tensors}
    tied = _tied(wanted)
    missing = [name for name in wanted if not any(other in planned for other in tied[name])]
    unexpected = [name for name in planned if name not in wanted]
    if missing or unexpected:
        parts = [f"{what} {few(names, _SHOWN)}" for what, names in (("no", missing), ("also", unexpected)) if names]
        remedy = "is it the weights of another model?"
        raise LoaderError(source, " and ".join(parts), f"the {len(wanted)} tensors of {type(model).__name__}", remedy)
    for name, tensor in planned.items():
        have = wanted[name]
        dtype = torch_dtype(tensor.dtype, source)
        if tuple(have.shape) != tensor.shape:
            raise LoaderError(source, f"{name} of shape {list(tensor.shape)}", f"{list(have.shape)}, as in the model")
        if have.dtype != dtype:
            remedy = f"build the model with dtype {dtype}, or convert what load_model returns without it"
            raise LoaderError(source, f"{name} of {dtype}", f"{have.dtype}, as in the model", remedy)


def assign(model: M, found: dict[str, torch.Tensor]) -> M:
    """Replace parameters and buffers of `model` by the tensors; ties between parameters are kept."""
    wanted = model.state_dict(keep_vars=True)
    tied = _tied(wanted)
    made: dict[int, torch.Tensor] = {}
    full: dict[str, torch.Tensor] = {}
    for name, have in wanted.items():
        source = next(other for other in (name, *tied[name]) if other in found)
        tensor = found[source]
        if isinstance(have, nn.Parameter):
            tensor = made.setdefault(id(have), nn.Parameter(tensor, requires_grad=have.requires_grad))
        full[name] = tensor
    model.load_state_dict(full, assign=True)
    return model


def _tied(state: dict[str, torch.Tensor]) -> dict[str, list[str]]:
    names: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    return {name: names[id(tensor)] for name, tensor in state.items()}
