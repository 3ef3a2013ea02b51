"""Where tensors and arrays lie in memory: a view changes with what it shows, so it travels as a place in that."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Layout = tuple[int, str, tuple[int, ...], tuple[int, ...], int]


def layout_of(value: Any) -> Layout | None:
    """The address of the memory, the data type, shape, strides and offset (octets for arrays, else elements).

    None for what is no dense tensor or array, or has no elements. All views of one memory have its address.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or value.requires_grad or not value.nelement():
            return None
        address = value.untyped_storage().data_ptr()
        return address, str(value.dtype), tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
    if type(value) is not np.ndarray or value.dtype.hasobject or not value.size:
        return None
    whole = _whole(value)
    offset = _address(value) - _address(whole)
    return _address(whole), value.dtype.str, value.shape, value.strides, offset


def strided(base: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    """The view of this layout of what lies in the same memory as ``base``. Raises LookupError where it does not fit."""
    try:
        if isinstance(base, torch.Tensor):
            return base.detach().as_strided(shape, strides, offset)
        return np.ndarray(shape, base.dtype, _whole(base), offset, strides)
    except (RuntimeError, ValueError, TypeError, BufferError) as error:
        raise LookupError(str(error)) from None


def _whole(array: Any) -> Any:
    """The array that owns the memory, as far as arrays know."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
