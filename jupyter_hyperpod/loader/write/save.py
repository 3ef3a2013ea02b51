"""`save_model`: writes a model's tensors to files, URLs or mounts, in parallel, and shows only complete ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

import torch
from torch import nn

from ...core.errors import LoaderError, SpecError
from ..read.http_connection import Cancel
from ..read.progress import Callback
from ..read.source import Options, merged
from ..read.sources import Opener
from ..read.tensors import format_dtype
from .destination import Views
from .layout import OutFile, Tensor
from .writer import Saved, Supply, Wanted, write_model

SHARD_BYTES = 5_000_000_000
METADATA = {"format": "pt"}


def save_model(
    model: nn.Module | Mapping[str, torch.Tensor],
    url: str | os.PathLike[str],
    *,
    shard_bytes: int | None = None,
    checksum: bool = False,
    metadata: Mapping[str, str] = METADATA,
    progress: Callback | bool | None = None,
    endpoint_url: str | None = None,
    connections: int | None = None,
    options: Options | None = None,
) -> Saved:
    """Write a module, or name -> tensor, as safetensors to ``s3://…``, ``shared://…``, ``file://…`` or a path.

    A `url` that ends in ``.safetensors`` is one file. Anything else is a directory, in which a model that is there is
    replaced: shards of at most `shard_bytes` (5 GB) with an index, or one file where that is enough. `checksum` writes
    a manifest beside it. Parameters that a module holds under several names are written once; `load_model` ties them
    again. `progress` is a function that is called as by `load_model`; without one, nothing is shown. `connections`,
    `endpoint_url` and `options` are those of `load_model`.

    The model appears once all of it is written, never in part. Raises LoaderError, which names the object, what was
    found and what was expected, and SpecError. After an error, or Ctrl-C, either the old or the complete new model is
    there. Raises Conflict for a read-only mount.
    """
    url = os.fspath(url)
    state = _state(model)
    supply = _Memory(state, url)
    tensors = [Tensor(name, format_dtype(tensor.dtype), tuple(tensor.shape)) for name, tensor in state.items()]
    if shard_bytes is None and not url.endswith(".safetensors"):
        shard_bytes = SHARD_BYTES
    wanted = Wanted(shard_bytes, checksum, metadata, connections, progress if callable(progress) else None)
    with closing(Opener(merged(options, endpoint_url))) as opener:
        return write_model(tensors, supply, url, wanted, opener)


def _state(model: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not isinstance(model, nn.Module):
        state = dict(model)
    else:
        state, seen = {}, set()
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor) and id(tensor) in seen:
                continue
            seen.add(id(tensor))
            state[name] = tensor
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise SpecError(f"{name!r} is a {type(tensor).__name__}; a model is written as names and tensors")
        if hasattr(tensor, "full_tensor"):
            whole = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
            remedy = f"save what {whole} of torch.distributed.checkpoint.state_dict returns, on one rank"
            raise SpecError(f"{name} is a {type(tensor).__name__}: this process holds a part of it; {remedy}")
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            kind = "on the meta device" if tensor.device.type == "meta" else f"of layout {tensor.layout}"
            raise LoaderError("model", f"{name} {kind}", "a dense tensor that has values")
    return state


class _Memory(Supply):
    """Bytes of tensors, in place; tensors on another device, or not contiguous, are copied."""

    def __init__(self, state: Mapping[str, torch.Tensor], url: str) -> None:
        self._flat: dict[str, torch.Tensor] = {}
        for name, tensor in state.items():
            whole = tensor.detach()
            if whole.is_conj() or whole.is_neg():
                whole = whole.resolve_conj().resolve_neg()
            self._flat[name] = whole.contiguous().reshape(-1).view(torch.uint8)

    def read(self, file: OutFile, begin: int, end: int, cancel: Cancel) -> Views:
        views = []
        for entry in file.header.entries_in(begin, end):
            piece = self._flat[entry.name][max(0, begin - entry.begin) : end - entry.begin]
            if len(piece):
                views.append(memoryview(piece.cpu().numpy().data))
        return views
