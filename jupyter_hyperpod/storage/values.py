"""Encodes values that travel between a notebook and a job as JSON text: numbers, text, containers, numpy arrays, torch
tensors, and frames of pandas. Never pickle.

Pushed values are stored beside the cells under their SHA-256, so that a resubmitted job finds the same ones. Pulled
values are in a file of the job, written by rank 0 when its cell has ended.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import NotFound, SpecError, StoreError
from ..core.options import near_matches
from .data_frames import FORMS, decode_frame, encode_frame
from .store import write_private

LIMIT_BYTES = 8 * 2**20
PULL_LIMIT_BYTES = 64 * 2**20
PULLED = "pulled.json"
_PRELUDE = "globals().update(__import__('jupyter_hyperpod.storage.values', fromlist=['pushed']).pushed({digest!r}))"
_PUSHED = re.compile(re.escape(_PRELUDE).replace(re.escape("{digest!r}"), "'([0-9a-f]{64})'"))
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_ARRAY_KINDS = "biufcmMUS"


class _Unfit(Exception):
    """Why a value cannot travel."""


def encode_values(values: Mapping[str, Any]) -> str:
    """Return `values` (name -> value) as text. Raises SpecError for an unsafe or too large value."""
    try:
        text = json.dumps({name: _named(value, name) for name, value in values.items()})
    except _Unfit as unfit:
        raise SpecError(f"--push cannot send {unfit}") from None
    if len(text) > LIMIT_BYTES:
        raise SpecError(
            f"--push of {', '.join(values)} is {len(text) / 2**20:.0f} MiB; the limit is {LIMIT_BYTES // 2**20} MiB: "
            "save large data to a file under shared:// and read it in the cell"
        )
    return text


def decode_values(text: str) -> dict[str, Any]:
    """Inverse of `encode_values`."""
    return {name: _decode(record) for name, record in json.loads(text).items()}


def prelude(digest: str) -> str:
    """A statement, of one line, that defines the values stored under `digest` in a cell."""
    return _PRELUDE.format(digest=digest)


def pushed_in(source: str) -> list[str]:
    """The digests of the values that a cell's preludes define."""
    return _PUSHED.findall(source)


def pushed(digest: str) -> dict[str, Any]:
    """Return the values stored under `digest` beside the running job's cell; raises StoreError for damage."""
    directory = Path(os.environ["HYPERPOD_CELL"]).parent
    content = (directory / digest).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise StoreError(f"pushed values {digest[:12]} in {directory} are damaged: their digest differs")
    return decode_values(content.decode())


def leave(directory: Path, names: Sequence[str], namespace: Mapping[str, Any]) -> None:
    """Leave what a cell has under these names in its job's directory, or a sentence for each that cannot travel."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    size = 0
    for name in names:
        if name not in namespace:
            known = [known for known in namespace if not known.startswith("_")]
            problems.append(f"the cell has no variable {name}{near_matches(name, known)}")
            continue
        try:
            record = _named(namespace[name], name)
        except _Unfit as unfit:
            problems.append(f"cannot bring back {unfit}")
            continue
        more = len(json.dumps(record))
        if size + more > PULL_LIMIT_BYTES:
            problems.append(
                f"{name} is {more / 2**20:.0f} MiB, and all values together may have {PULL_LIMIT_BYTES // 2**20} MiB: "
                "save it to a file under shared:// and read it in the notebook"
            )
            continue
        values[name], size = record, size + more
    write_private(directory / PULLED, json.dumps({"values": values, "problems": problems}).encode())


def pulled(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """What `leave` has left: the values, and sentences about others. Raises NotFound."""
    try:
        found = json.loads((directory / PULLED).read_bytes())
    except FileNotFoundError:
        raise NotFound("no values came back: the cell did not come to its end on rank 0") from None
    return {name: _decode(record) for name, record in found["values"].items()}, list(found["problems"])


def _named(value: Any, name: str) -> Any:
    try:
        return _encode(value)
    except _Unfit as unfit:
        raise _Unfit(f"{name!r}: it holds {unfit}") from None
    except SpecError as error:
        raise _Unfit(f"{name!r}: {error}") from None
    except RecursionError:
        raise _Unfit(f"{name!r}: it is nested too deeply") from None


def _encode(value: Any) -> Any:
    if type(value) in _PLAIN:
        return {"json": value}
    if (kind := type(value).__name__) in _CONTAINERS and type(value) is _CONTAINERS[kind]:
        items = sorted(value, key=repr) if kind in ("set", "frozenset") else value
        return {kind: [_encode(item) for item in items]}
    if type(value) is dict:
        if all(isinstance(key, str) for key in value):
            return {"dict": {key: _encode(item) for key, item in value.items()}}
        return {"items": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if (found := _encode_array(value) or encode_frame(value, _encode)) is not None:
        return found
    raise _Unfit(
        f"a {type(value).__module__}.{type(value).__qualname__}; numbers, text, containers of them, numpy arrays, "
        "torch tensors and frames of pandas can travel"
    )


def _encode_array(value: Any) -> dict[str, Any] | None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.kind not in _ARRAY_KINDS:
            raise _Unfit(f"an array of dtype {array.dtype}; numbers, times and text can travel")
        array = array.astype(array.dtype.newbyteorder("<"), order="C")
        form = "numpy" if isinstance(value, numpy.ndarray) else "scalar"
        return {form: _block(array.dtype.str, array.shape, array.tobytes())}
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise _Unfit("a tensor that is sparse or quantized; make it dense")
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
    if form == "items":
        return {_decode(key): _decode(item) for key, item in content}
    if form in _CONTAINERS:
        return _CONTAINERS[form](_decode(item) for item in content)
    if form == "complex":
        return complex(*content)
    if form == "bytes":
        return base64.b64decode(content)
    return decode_frame(form, content, _decode) if form in FORMS else _decode_array(form, content)


def _decode_array(form: str, content: Mapping[str, Any]) -> Any:
    data = bytearray(base64.b64decode(content["data"]))
    if form in ("numpy", "scalar"):
        import numpy

        array = numpy.frombuffer(data, numpy.dtype(content["dtype"])).reshape(content["shape"])
        return array if form == "numpy" else array[()]
    import torch

    dtype = getattr(torch, content["dtype"])
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(content["shape"])
