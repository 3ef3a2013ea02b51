"""A storage for torch.distributed.checkpoint without pickle: tensors in one safetensors file, written without a copy.

DCP's own file system storage keeps its metadata as a pickle. Here the header of the file, which is JSON, has everything
that a reader needs; values other than tensors are in the manifest (see `store`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ...core.errors import LoaderError, TrainingError
from ...loader.header import encode_header
from ...loader.read.tensors import format_dtype, torch_dtype
from ..comm.reduction import as_bytes
from .store import write

Between = Callable[[], None]


def save(path: Path, tensors: Mapping[str, torch.Tensor], between: Between) -> dict[str, tuple[int, str]]:
    """Write `tensors` to the file `path`; return name -> (bytes, SHA-256) of it.

    `between` is called while writing and may raise to give up. Raises OSError, TrainingError.
    """
    writer = DcpWriter(path, between)
    with _alone():
        dcp_save(dict(tensors), storage_writer=writer, no_dist=True)
    return writer.files


def load(path: Path, tensors: Mapping[str, torch.Tensor], between: Between) -> None:
    """Fill `tensors` with what `save` wrote. Raises OSError, TrainingError for other names, types or shapes."""
    with _alone():
        dcp_load(dict(tensors), storage_reader=DcpReader(path, between), no_dist=True)


@contextmanager
def _alone() -> Iterator[None]:
    """Without DCP's warning, since one member saves for all, and with this process's error in place of DCP's."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    try:
        yield
    except CheckpointException as error:
        cause: BaseException = next(iter(error.failures.values()))[0]
        raise cause from error


class _OneFile:
    """What writer and reader have in common: each is used once, for one file, and has nothing to add to a plan."""

    def __init__(self, path: Path, between: Between) -> None:
        self._path = path
        self._between = between

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Used once."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        """Nothing to add."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Chosen by name only."""
        return False


class DcpWriter(_OneFile, StorageWriter):
    """Writes one file per rank; ``files`` describes it afterwards."""

    def __init__(self, path: Path, between: Between) -> None:
        super().__init__(path, between)
        self.files: dict[str, tuple[int, str]] = {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The directory exists already."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the header, then every tensor in the order of the plan."""
        header = encode_header([_entry(item) for item in plan.items], {})

        def parts() -> Iterator[memoryview | bytes]:
            yield header
            for item in plan.items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor)  # `_entry` has refused other values
                yield as_bytes(tensor.detach().cpu().contiguous())

        self.files[self._path.name] = write(self._path, parts(), self._between)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, _size(item), self._path.name) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing to write: the header of the file has all metadata."""


class DcpReader(_OneFile, StorageReader):
    """Reads a file of `DcpWriter`, one tensor at a time, into existing tensors."""

    def __init__(self, path: Path, between: Between) -> None:
        super().__init__(path, between)
        self._places: dict[str, tuple[int, torch.dtype, list[int]]] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata in the header of the file."""
        with open(self._path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        found: dict[str, Any] = {}
        for name, about in header.items():
            dtype, shape = torch_dtype(about["dtype"], name), torch.Size(about["shape"])
            self._places[name] = (8 + size + about["data_offsets"][0], dtype, about["shape"])
            whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
            found[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), shape, [whole])
        return Metadata(
            state_dict_metadata=found, storage_data={MetadataIndex(name): self._path.name for name in found}
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The header has been read already."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read every tensor of the plan; of a sharded one, this member's part."""
        with open(self._path, "rb") as file:
            for item in plan.items:
                self._between()
                start, dtype, shape = self._places[item.storage_index.fqn]
                whole = torch.empty(shape, dtype=dtype)
                file.seek(start)
                view = as_bytes(whole)
                if file.readinto(view) != len(view):
                    raise TrainingError(f"{self._path} ends within {item.storage_index.fqn}")
                part = whole
                for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    part = part.narrow(axis, offset, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _entry(item: WriteItem) -> tuple[str, str, tuple[int, ...]]:
    """Name, dtype and shape of a tensor. Raises TrainingError for a part of one, and for types without a name."""
    about = item.tensor_data
    if about is None:
        raise TrainingError(f"{item.index.fqn} is no tensor; expected tensors only")
    if about.chunk.sizes != about.size:
        raise TrainingError(
            f"{item.index.fqn} is a shard {tuple(about.chunk.sizes)} of {tuple(about.size)}; expected all"
        )
    try:
        return item.index.fqn, format_dtype(about.properties.dtype), tuple(about.size)
    except LoaderError as error:
        reason = f"{item.index.fqn} is of {about.properties.dtype}, which a checkpoint cannot hold"
        raise TrainingError(reason) from error


def _size(item: WriteItem) -> int:
    about = item.tensor_data
    return 0 if about is None else about.size.numel() * about.properties.dtype.itemsize
