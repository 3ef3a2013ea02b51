"""Encodes small notebook values for a job as JSON text, with numpy arrays and torch tensors inside. Never pickle.

The text is stored beside the cells under its SHA-256, so that a resubmitted job finds the same values.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import SpecError, StoreError

LIMIT_BYTES = 8 * 2**20
_PLAIN = (bool, int, float, str, type(None))
_NUMERIC_KINDS = "biufc"


def encode_values(values: Mapping[str, Any]) -> str:
    """Return `values` (name -> value) as text. Raises SpecError for an unsafe or too large value."""
    text = json.dumps({name: _encode(value, name) for name, value in values.items()})
    if len(text) > LIMIT_BYTES:
        raise SpecError(
            f"--push of {', '.join(values)} is {len(text) / 2**20:.0f} MiB; the limit is {LIMIT_BYTES // 2**20} MiB: "
            "save large data to a file under shared:// and read it in the cell"
        )
    return text


def decode_values(text: str) -> dict[str, Any]:
    """Inverse of `encode_values`."""
    return {name: _decode(record) for name, record in json.loads(text).items()}


def pushed(digest: str) -> dict[str, Any]:
    """Return the values stored under `digest` beside the running job's cell; raises StoreError for damage."""
    directory = Path(os.environ["HYPERPOD_CELL"]).parent
    content = (directory / digest).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise StoreError(f"pushed values {digest[:12]} in {directory} are damaged: their digest differs")
    return decode_values(content.decode())


def _encode(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return {"json": value}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [_encode(item, name) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item, name) for key, item in value.items()}}
    if (array := _encode_array(value, name)) is not None:
        return array
    raise SpecError(
        f"--push cannot send {name!r}: it holds a {type(value).__module__}.{type(value).__qualname__}; numbers, text, "
        "lists, dicts with text keys, numpy arrays and torch tensors can be sent, other things must be made in the cell"
    )


def _encode_array(value: Any, name: str) -> dict[str, Any] | None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.kind not in _NUMERIC_KINDS:
            raise SpecError(
                f"--push cannot send {name!r}: an array of dtype {array.dtype}; numbers and booleans can be sent"
            )
        array = array.astype(array.dtype.newbyteorder("<"), order="C")
        return {"numpy": _block(array.dtype.str, array.shape, array.tobytes())}
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        return {"torch": _block(dtype, tensor.shape, content)}
    return None


def _block(dtype: str, shape: tuple[int, ...], content: bytes) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data": base64.b64encode(content).decode()}


def _decode(record: Mapping[str, Any]) -> Any:
    ((form, content),) = record.items()
    if form == "json":
        return content
    if form == "dict":
        return {key: _decode(item) for key, item in content.items()}
    if form in ("list", "tuple"):
        items = [_decode(item) for item in content]
        return items if form == "list" else tuple(items)
    data = bytearray(base64.b64decode(content["data"]))
    if form == "numpy":
        import numpy

        return numpy.frombuffer(data, numpy.dtype(content["dtype"])).reshape(content["shape"])
    import torch

    dtype = getattr(torch, content["dtype"])
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(content["shape"])
