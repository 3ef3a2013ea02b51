"""Turns landed bytes into tensors, and converts names of dtypes."""

from __future__ import annotations

import torch

from ...core.errors import LoaderError
from ..header import DTYPES
from ..memory import Bytes
from .plan import Placed

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, known) for name, (_, known) in DTYPES.items() if known and hasattr(torch, known)
}
_FORMAT_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def torch_dtype(name: str, source: str) -> torch.dtype:
    """Return the dtype that the format calls `name`. Raises LoaderError for one that this torch lacks."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise LoaderError(source, f"a tensor of dtype {name}", f"a dtype that torch {torch.__version__} knows")
    return dtype


def format_dtype(dtype: torch.dtype) -> str:
    """Return the format's name of `dtype`. Raises LoaderError."""
    if dtype not in _FORMAT_NAMES:
        raise LoaderError("model", f"a tensor of dtype {dtype}", f"one of {', '.join(map(str, _FORMAT_NAMES))}")
    return _FORMAT_NAMES[dtype]


def view(landed: Bytes, tensor: Placed, source: str) -> torch.Tensor:
    """Return `tensor`, of shape `tensor.shape`, in place; only a misaligned one is copied."""
    _, name, shape, _, place, length = tensor
    dtype = _DTYPES.get(name) or torch_dtype(name, source)
    if not length:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(landed, dtype=dtype, count=length // dtype.itemsize, offset=place)
    if flat.data_ptr() % dtype.itemsize:
        flat = torch.frombuffer(bytearray(landed[place : place + length]), dtype=dtype)
    if len(shape) == 1:
        return flat
    return flat.view(*shape) if shape else flat.view(shape)  # numbers are faster than a tuple of them
