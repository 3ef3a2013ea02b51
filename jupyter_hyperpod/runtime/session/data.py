"""Data sets addressed by index: any sample can be read without the ones before it.

So nothing has to be replayed after a fault: (seed, step, micro-batch) determines the samples. Token files are
memory-mapped; pages that one process has read are cached for the next, so a newcomer gets its first batch at once.
Tokens in an object store are read through the node's block cache, which also outlives processes.
"""

from __future__ import annotations

import inspect
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from ...core.errors import SpecError, TrainingError
from ...mounts import remote, repository
from ...mounts.block_cache import BlockCache, CachedObject
from ...mounts.table import Mounts, known_mounts, resolve_url
from ..worker.main import switched_on

_MASK = (1 << 64) - 1
_ROUNDS = 4
_TOKENS = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}


@runtime_checkable
class IndexedData(Protocol):
    """The data set that a Session needs. The parameter's name distinguishes `batch` from other methods of that name."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Sequence[int]) -> Any:
        """The samples at `indices`, collated."""


class TokenDataset:
    """Windows of ``sequence_length`` tokens from a file of tokens only: bytes, or with ``token_bytes`` 2 or 4
    unsigned 16-bit or signed 32-bit numbers in this machine's byte order.

    ``batch(indices)`` returns ``(inputs, targets)``: int64 tensors ``(len(indices), sequence_length)``, targets one
    token ahead. ``path`` may be ``shared://corpus/text.bin``, or a URL such as ``s3://bucket/text.bin``, which is read
    through the block cache of the node. Raises SpecError when the file is missing or too short.
    """

    def __init__(self, path: str | os.PathLike[str], sequence_length: int, *, token_bytes: int = 1) -> None:
        if token_bytes not in _TOKENS:
            raise SpecError(f"token_bytes is {token_bytes}; expected 1, 2 or 4")
        if sequence_length < 1:
            raise SpecError(f"sequence_length is {sequence_length}; expected at least 1 token")
        self.sequence_length = sequence_length
        self.vocabulary_size = torch.iinfo(_TOKENS[token_bytes]).max + 1
        self._token_bytes = token_bytes
        mounts = known_mounts()
        self.path = repository.local(resolve_url(os.fspath(path), mounts), mounts)
        content = _cached(self.path, mounts) if remote.is_remote(self.path) else _mapped(self.path)
        size = content.size if isinstance(content, CachedObject) else len(content)
        needed = (sequence_length + 1) * token_bytes
        if size < needed:
            raise SpecError(f"{self.path} holds {size} bytes; one sample needs {needed}")
        if size % token_bytes:
            raise SpecError(f"{self.path} holds {size} bytes, which are no whole tokens of {token_bytes} bytes")
        self._content = content
        self._samples = (size // token_bytes - 1) // sequence_length

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(inputs, targets)``, each contiguous int64 ``(len(indices), sequence_length)``."""
        inputs, targets = torch.empty((2, len(indices), self.sequence_length), dtype=torch.int64)
        for place, index in enumerate(indices):
            window = self._window(index)
            inputs[place], targets[place] = window[:-1], window[1:]
        return inputs, targets

    def _window(self, index: int) -> torch.Tensor:
        """The tokens of a sample and the next one, as stored."""
        count = self.sequence_length + 1
        start = index * self.sequence_length * self._token_bytes
        dtype = _TOKENS[self._token_bytes]
        if isinstance(self._content, CachedObject):
            return torch.frombuffer(self._content.read(start, count * self._token_bytes), dtype=dtype)
        return torch.frombuffer(self._content, dtype=dtype, count=count, offset=start)


def _mapped(path: str) -> mmap.mmap | bytearray:
    """Map the file. A private mapping is writable, as torch requires, and never changes the file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size and switched_on("data"):
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return bytearray(file.read())
    except OSError as error:
        raise SpecError(f"cannot open the tokens at {path}: {error.strerror}") from error


def _cached(url: str, mounts: Mounts) -> CachedObject | bytearray:
    source = remote.RemoteSource(url, mounts.specs)
    if switched_on("data"):
        return BlockCache().open(source)
    content = bytearray(source.size)
    source.read_into(0, memoryview(content))
    return content


class MappedDataset:
    """Any map-style data set (``len`` and ``[index]``), collated by ``collate_fn`` as a DataLoader would."""

    def __init__(self, data: Any, collate_fn: Callable[[list[Any]], Any] = torch.utils.data.default_collate) -> None:
        self._data = data
        self._collate = collate_fn
        self._several = getattr(data, "__getitems__", None)

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Sequence[int]) -> Any:
        """The samples at `indices`, collated. Raises TrainingError where torch's default collate does not fit them."""
        samples = self._several(list(indices)) if self._several else [self._data[index] for index in indices]
        if self._collate is not torch.utils.data.default_collate:
            return self._collate(samples)
        try:
            return self._collate(samples)
        except (RuntimeError, TypeError) as error:
            raise TrainingError(
                f"samples of the data ({_name(self._data)}) cannot be put into one batch: {error}; expected samples of "
                "the same shapes. An object with __len__() and batch(indices) may pad or collate them as it likes"
            ) from error


def indexed(data: Any) -> IndexedData:
    """Return `data` in the form that a Session needs. Raises SpecError where samples cannot be addressed by index.

    Data with ``batch(indices)`` is used unchanged. Where a method of that name takes something else, such as
    ``datasets.Dataset.batch(batch_size)``, samples are read by index. Of a DataLoader that shuffles, its data set and
    its ``collate_fn`` are used.
    """
    if isinstance(data, torch.utils.data.DataLoader):
        return _of_loader(data)
    if isinstance(data, IndexedData) and (parameter := _first_parameter(data.batch)) != "batch_size":
        if parameter == "indices" or not hasattr(data, "__getitem__"):
            return data
        raise SpecError(
            f"data is a {_name(data)} with both items by index and a method batch({parameter}); if that method takes a "
            "list of indices, call its parameter indices, and it is used; otherwise give it another name"
        )
    if _is_map_style(data):
        _refuse_lists(data)
        return MappedDataset(data)
    raise SpecError(
        f"data is a {_name(data)}; expected something with a length and items by index "
        "(hp.TokenDataset, a list, a map-style torch Dataset, one split of a datasets.DatasetDict), because samples "
        "are addressed by index"
    )


def _of_loader(loader: torch.utils.data.DataLoader[Any]) -> MappedDataset:
    """The data set of a DataLoader. Raises SpecError for one whose order of samples the session would not keep."""
    sampler = loader.sampler
    if isinstance(sampler, torch.utils.data.RandomSampler) and not sampler.replacement and sampler._num_samples is None:
        indexed(loader.dataset)
        return MappedDataset(loader.dataset, loader.collate_fn)
    if isinstance(sampler, torch.utils.data.SequentialSampler):
        found = "does not shuffle, and the session does"
    else:
        found = f"draws its samples by a {type(sampler).__name__}, and the session takes each sample once per epoch"
    raise SpecError(
        f"data is a DataLoader that {found}. Pass its data set, hp.Session(model, optimizer, loader.dataset), or an "
        "object with __len__() and batch(indices) that reads and collates the samples that you want"
    )


def _is_map_style(data: Any) -> bool:
    """Whether ``data[i]`` is sample i. Mappings and data frames have items, too, but by other keys."""
    other = isinstance(data, (Mapping, torch.utils.data.IterableDataset)) or hasattr(data, "iloc")
    return not other and hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _first_parameter(method: Callable[..., Any]) -> str:
    """The name of a method's first parameter, "" where it has none or cannot be inspected."""
    try:
        return next(iter(inspect.signature(method).parameters), "")
    except (TypeError, ValueError):
        return ""


def _refuse_lists(data: Any) -> None:
    """Raise SpecError for a data set of the datasets library with columns of lists: collating would transpose them."""
    form = getattr(data, "format", None)
    if not isinstance(form, Mapping) or form.get("type", "") is not None or not len(data):
        return
    if columns := [name for name, value in data[0].items() if isinstance(value, list)]:
        raise SpecError(
            f"column {columns[0]!r} of the data holds lists, not tensors; pass data.with_format('torch') to hp.Session"
        )


def _name(data: Any) -> str:
    kind = type(data)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def sample_indices(seed: int, step: int, index: int, micro_batch: int, global_batch: int, length: int) -> list[int]:
    """The samples of micro-batch ``index`` of step ``step`` (from 0): each epoch is a permutation of all samples."""
    first = step * global_batch + index * micro_batch
    return [permute(p % length, length, mix(seed, p // length)) for p in range(first, first + micro_batch)]


def mix(*values: int) -> int:
    """Hash whole numbers into 64 bits (splitmix64 finaliser, Steele et al. 2014)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state + (value & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permute(index: int, length: int, key: int) -> int:
    """The image of ``index`` under a keyed permutation of range(length): a Feistel network, cycle-walked.

    (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.)
    """
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    half = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & half
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mix(key, turn, right) & half)
        index = (left << half_bits) | right
        if index < length:
            return index
