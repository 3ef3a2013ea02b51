"""Data sets addressed by index: any sample can be read without the ones before it.

So nothing has to be replayed after a fault: (seed, step, micro-batch) determines the samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from ...core.errors import SpecError, TrainingError


@runtime_checkable
class IndexedData(Protocol):
    """The data set that a Session needs. The parameter's name distinguishes `batch` from other methods of that name."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Sequence[int]) -> Any:
        """The samples at `indices`, collated."""


class MappedDataset:
    """Any map-style data set (``len`` and ``[index]``), collated by ``collate_fn`` as a DataLoader would."""

    def __init__(self, data: Any, collate_fn: Callable[[list[Any]], Any] = torch.utils.data.default_collate) -> None:
        self.data = data
        self._collate = collate_fn
        self._several = getattr(data, "__getitems__", None)

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Sequence[int]) -> Any:
        """The samples at `indices`, collated. Raises TrainingError where torch's default collate does not fit them."""
        samples = self._several(list(indices)) if self._several else [self._sample(index) for index in indices]
        if self._collate is not torch.utils.data.default_collate:
            return self._collate(samples)
        try:
            return self._collate(samples)
        except (RuntimeError, TypeError) as error:
            raise TrainingError(
                f"samples of the data ({_name(self.data)}) cannot be put into one batch: {error}; expected samples of "
                "the same shapes. An object with __len__() and batch(indices) may pad or collate them as it likes"
            ) from error

    def _sample(self, index: int) -> Any:
        try:
            return self.data[index]
        except Exception as error:
            error.add_note(f"while sample {index} was read")
            raise


def indexed(data: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> IndexedData:
    """Return `data` in the form that a Session needs. Raises SpecError where samples cannot be addressed by index.

    Data with ``batch(indices)`` is used unchanged. Where a method of that name takes something else, such as
    ``datasets.Dataset.batch(batch_size)``, samples are read by index, and so with a ``collate_fn``.
    """
    if collate_fn is not None and is_map_style(data):
        return MappedDataset(data, collate_fn)
    if isinstance(data, IndexedData) and (parameter := _first_parameter(data.batch)) != "batch_size":
        if parameter == "indices" or not hasattr(data, "__getitem__"):
            return data
        raise SpecError(
            f"data is a {_name(data)} with both items by index and a method batch({parameter}); if that method takes a "
            "list of indices, call its parameter indices, and it is used; otherwise give it another name"
        )
    if is_map_style(data):
        _refuse_lists(data)
        return MappedDataset(data)
    raise SpecError(
        f"data is a {_name(data)}; expected something with a length and items by index "
        "(hp.TokenDataset, a list, a map-style torch Dataset, one split of a datasets.DatasetDict), because samples "
        "are addressed by index"
    )


def single(samples: list[Any]) -> Any:
    """The only sample of a micro-batch, for data whose items are batches already."""
    return torch.utils.data.default_convert(samples[0])


def is_map_style(data: Any) -> bool:
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
