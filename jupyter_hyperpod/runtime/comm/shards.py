"""Converts between sharded parameters (DTensors) and this process's local parts of them.

This module never imports torch's distributed tensors: unless the cell has, none exist.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ...core.errors import SpecError


def is_shard(value: Any) -> bool:
    """Whether this is a DTensor, of which this process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of `tensor`: all of it, or a DTensor's local part. Shares its memory."""
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def around(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Wrap `part` as a tensor like `whole`: the inverse of `local`. Shares its memory."""
    if not is_shard(whole):
        return part
    return assembled(part, whole.device_mesh, whole.placements, whole.shape, whole.stride())  # type: ignore[attr-defined]


def assembled(
    part: torch.Tensor, mesh: Any, placements: Sequence[Any], shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """The DTensor of global `shape` whose local part is `part`."""
    made: torch.Tensor = sys.modules["torch.distributed.tensor"].DTensor.from_local(
        part, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )
    return made


def mesh_of(parameters: Sequence[torch.Tensor]) -> Any:
    """The device mesh of the first parameter that is sharded, or None."""
    return next((p.device_mesh for p in parameters if is_shard(p)), None)  # type: ignore[attr-defined]


def describe(tensor: torch.Tensor) -> list[Any]:
    """A DTensor's global shape, stride and placement as JSON; raises SpecError unless one dimension is sharded."""
    (placement,) = tensor.placements  # type: ignore[attr-defined]
    if not (placement.is_shard() or placement.is_replicate()):
        raise SpecError(f"a tensor of the state is placed as {placement}; expected Shard(dim) or Replicate()")
    return [list(tensor.shape), list(tensor.stride()), placement.dim if placement.is_shard() else None]


def described(part: torch.Tensor, mesh: Any, description: Sequence[Any]) -> torch.Tensor:
    """Inverse of `describe` for the local part `part` of a tensor on `mesh`."""
    shape, stride, dim = description
    module = sys.modules["torch.distributed.tensor"]
    placement = module.Replicate() if dim is None else module.Shard(dim)
    return assembled(part, mesh, (placement,), shape, stride)


def check(parameters: Sequence[torch.nn.Parameter], size: int, micro_batch: int) -> None:
    """Raise SpecError unless `parameters` are sharded over the ``size`` ranks of a replica."""
    if size == 1:
        return
    if micro_batch % size:
        raise SpecError(
            f"micro_batch is {micro_batch} and a replica has {size} ranks, which each compute an equal part of it; "
            f"expected a multiple of {size}"
        )
    for index, parameter in enumerate(parameters):
        if problem := _misplaced(parameter, size):
            raise SpecError(
                f"parameter {index} of shape {tuple(parameter.shape)} {problem}; with "
                f"--replica {size} every trained parameter has to be sharded over the replica's {size} ranks: "
                f'fully_shard(model, mesh=init_device_mesh("cpu", ({size},))) before the optimizer is made'
            )


def _misplaced(parameter: torch.Tensor, size: int) -> str:
    """Why it is not sharded along one dimension of a mesh of `size` ranks; empty where it is."""
    mesh = mesh_of([parameter])
    if mesh is None or mesh.ndim != 1 or not parameter.placements[0].is_shard():  # type: ignore[attr-defined]
        return "is not sharded in one dimension"
    return "" if mesh.size() == size else f"is sharded over {mesh.size()} ranks"
