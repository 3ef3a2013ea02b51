"""Lanes: state that each micro-batch leaves for the micro-batch of the same number in the next step.

During a step every lane keeps what it had when the step began. What a micro-batch leaves travels with its gradient, in
a place of its own and to the bit. With the step every member takes all lanes, so that the next step may compute a lane
on any member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ...core.errors import TrainingError

WORD_BYTES = 8
OUTSIDE = (
    "lanes.{name} is used outside the loss function, or while backward runs, where it belongs to no micro-batch: "
    "between two steps write lanes[i].{name}, and inside the loss function use it before any checkpointed part"
)


class LaneStore:
    """The lanes of one session: ``kept[name]`` has shape (micro-batches, *shape of one)."""

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.kept: dict[str, torch.Tensor] = {}
        self._first: dict[str, torch.Tensor] = {}  # what each lane begins with
        self._present: dict[str, torch.Tensor] = {}  # of the micro-batch that is computed now
        self.index: int | None = None  # its number
        self.words = 0  # int64 of one lane

    def declare(self, first: Mapping[str, Any]) -> None:
        """Let every lane begin with these tensors. Raises TrainingError for anything else."""
        if self.kept or not first:
            raise TrainingError(
                "session.lanes() is called once, with a tensor by name for all that a lane keeps, such as "
                "lanes = session.lanes(h=torch.zeros(2, micro_batch, 64))"
            )
        for name, value in first.items():
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
                raise TrainingError(f"lane {name} begins with a {type(value).__name__}; expected a dense tensor")
            if name.startswith("_") or hasattr(CarriedLanes, name):
                raise TrainingError(f"a lane cannot be called {name!r}: the object of the lanes uses that name itself")
            self._first[name] = value.detach().clone()
            self.kept[name] = torch.stack([self._first[name]] * self.micro_batches)
            self.words += _words(self._first[name])

    def reset(self) -> None:
        """Let every lane begin again. Raises TrainingError inside a loss function."""
        if self.index is not None:
            raise TrainingError("lanes.reset() was called inside the loss function; call it between two steps")
        for name, value in self.kept.items():
            value.copy_(self._first[name].expand_as(value))

    def get(self, name: str) -> torch.Tensor:
        """What the micro-batch that is computed now has."""
        if name not in self.kept:
            raise AttributeError(f"there is no lane {name!r}; there are {', '.join(self.kept)}")
        if self.index is None:
            raise TrainingError(OUTSIDE.format(name=name))
        return self._present[name]

    def set(self, name: str, value: Any) -> None:
        """Leave a value for the next step."""
        before = self.get(name)
        if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (before.shape, before.dtype):
            found = f"a {type(value).__name__}"
            if isinstance(value, torch.Tensor):
                found = f"{value.dtype} of shape {tuple(value.shape)}"
            raise TrainingError(
                f"lanes.{name} was set to {found}; expected {before.dtype} of shape {tuple(before.shape)}, as "
                "session.lanes() was given"
            )
        self._present[name] = value

    @contextmanager
    def open(self, leaf: int) -> Iterator[None]:
        """Let the loss function of micro-batch ``leaf`` read and set its lane."""
        if not self.kept:
            yield
            return
        self.index, self._present = leaf, {name: value[leaf].clone() for name, value in self.kept.items()}
        try:
            yield
        finally:
            self.index = None

    def left(self) -> torch.Tensor:
        """What the last micro-batch computed here has left, as ``words`` numbers of int64."""
        parts = [_as_words(value.detach()) for value in self._present.values()]
        self._present = {}
        return torch.cat(parts)

    def apply(self, left: torch.Tensor) -> None:
        """Take what all micro-batches have left: int64 of shape (micro-batches, words)."""
        start = 0
        with torch.no_grad():
            for value in self.kept.values():
                end = start + _words(value[0])
                rows = left[:, start:end].contiguous().view(torch.uint8)[:, : value[0].numel() * value.element_size()]
                value.copy_(rows.contiguous().view(value.dtype).view_as(value))
                start = end

    def as_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """All lanes, and what they begin with, which may be random; no copies."""
        return {"kept": dict(self.kept), "first": dict(self._first)}

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take the lanes of another member or of a checkpoint. Raises TrainingError where they do not fit."""
        given = state.get("kept", {})
        theirs, own = ({name: tuple(value.shape) for name, value in lanes.items()} for lanes in (given, self.kept))
        if theirs != own:
            raise TrainingError(
                f"the state holds lanes {theirs}, and session.lanes() was given {own}: give it the same names and "
                "shapes as in the run that the state comes from"
            )
        for name, value in given.items():
            self.kept[name].copy_(value)
            self._first[name].copy_(state["first"][name])


class Lane:
    """The state of one lane, between two steps: ``lanes[i].name`` is a copy."""

    __slots__ = ("_kept", "_number")

    def __init__(self, kept: Mapping[str, torch.Tensor], number: int) -> None:
        self._kept = kept
        self._number = number

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in self._kept:
            raise AttributeError(f"there is no lane {name!r}; there are {', '.join(self._kept)}")
        return self._kept[name][self._number].clone()


class CarriedLanes:
    """State carried from step to step, per micro-batch, such as the hidden state of an LSTM over a long text.

    Inside the loss function ``lanes.h`` is what this micro-batch's lane keeps, ``lanes.h = h.detach()`` sets it for the
    next step, and ``lanes.index`` is the number of the micro-batch. Between two steps ``lanes[i].h`` reads lane i, and
    ``lanes.reset()`` lets all of them begin again. A step that the guard skips leaves them alone.
    """

    __slots__ = ("_store",)
    _store: LaneStore

    def __init__(self, store: LaneStore) -> None:
        object.__setattr__(self, "_store", store)

    @property
    def index(self) -> int:
        """The number of the micro-batch that is computed now, from 0. Raises TrainingError outside a loss function."""
        if self._store.index is None:
            raise TrainingError(OUTSIDE.format(name="index"))
        return self._store.index

    def reset(self) -> None:
        """Let every lane begin again, between two steps. Raises TrainingError inside a loss function."""
        self._store.reset()

    def __len__(self) -> int:
        return self._store.micro_batches

    def __getitem__(self, number: int) -> Lane:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are lanes 0 to {len(self) - 1}, and none of number {number}")
        if self._store.index is not None:
            raise TrainingError(
                f"lanes[{number}] is read inside the loss function, where a micro-batch has its own lane only: write "
                "lanes and the name"
            )
        return Lane(self._store.kept, number % len(self))

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._store.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._store.set(name, value)


def _words(value: torch.Tensor) -> int:
    return -(-value.numel() * value.element_size() // WORD_BYTES)


def _as_words(value: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as int64, filled up with zeros."""
    raw = value.cpu().contiguous().reshape(-1).view(torch.uint8)
    words = torch.zeros(_words(value), dtype=torch.int64)
    words.view(torch.uint8)[: raw.numel()] = raw
    return words
