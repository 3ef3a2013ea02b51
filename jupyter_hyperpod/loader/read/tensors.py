"""Turns landed bytes into tensors, and converts names of dtypes."""

from __future__ import annotations

import torch

from ...core.errors import LoaderError
from ..memory import Bytes
from .plan import Placed

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, known) for name, known in _NAMES.items() if hasattr(torch, known)
}


def torch_dtype(name: str, source: str) -> torch.dtype:
    """Return the dtype that the format calls `name`. Raises LoaderError for one that this torch lacks."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise LoaderError(source, f"a tensor of dtype {name}", f"a dtype that torch {torch.__version__} knows")
    return dtype


def format_dtype(dtype: torch.dtype) -> str:
    """Return the format's name of `dtype`. Raises LoaderError."""
    for name, known in _NAMES.items():
        if getattr(torch, known, None) is dtype:
            return name
    raise LoaderError("model", f"a tensor of dtype {dtype}", f"one of {', '.join(_NAMES.values())}")


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
