"""The objects that a cell could reach before its first step: what tells one object from another in other processes.

All members run the same code until then, so each of them has an object of its own at the same path. A variable or an
attribute that holds another one of these objects later, such as the next stage of a list of stages, is carried as that
path, and no content is written into the wrong object.
"""

from __future__ import annotations

import ast
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ..session.optimizer_state import access
from .copies.layouts import layout_of, strided
from .readings import is_iterator
from .value_kinds import PLAIN, has_attributes, held_by, size
from .walk import Noted, Path, Visit, Walk, path_of

VIEW, PART_OF = "view", "part of"  # at the beginning of a key
_VIEW, _PART = (repr((kind, ""))[:-4] for kind in (VIEW, PART_OF))
SMALL = 1000  # items of a container that is kept alive, because nothing refers to one weakly
_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    type,
)


class Reference:
    """An object that is remembered: a large one is not kept alive, and of a large list only the address is kept."""

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        self._get: Callable[[], Any] | None = None
        is_small = has_attributes(value) and access(value) is None and size(held_by(value)) <= SMALL
        try:
            self._get = (lambda: value) if is_small else weakref.ref(value)
        except TypeError:
            if not hasattr(value, "__len__") or len(value) <= SMALL:
                self._get = lambda: value

    def is_of(self, value: Any) -> bool:
        """Whether it is this object."""
        return id(value) == self._address if self._get is None else self._get() is value

    def get(self) -> Any:
        """The object, None if it is gone."""
        return None if self._get is None else self._get()


def is_followed(value: Any) -> bool:
    """Whether it matters which object this is: it can be changed in place, and is no code."""
    return not isinstance(value, (*PLAIN, *_CODE, tuple, frozenset)) and not is_iterator(value)


class OwnTensors:
    """The tensors of the session's model and of its optimizer's state, and views of them that a program keeps.

    A view changes with what it shows: such as ``best = model.state_dict()``, which is no copy. What an optimizer keeps
    of a group of parameters is one of its own, too.
    """

    def __init__(self, sources: Mapping[str, Any]) -> None:
        self._sources = sources
        self._by_storage: dict[int, tuple[str, torch.Tensor]] = {}

    def forget(self) -> None:
        """The tensors may be others from now on."""
        self._by_storage = {}

    def key_of(self, value: torch.Tensor) -> str | None:
        """What names a view of one of the tensors, None for another tensor."""
        if type(value) is not torch.Tensor or value.requires_grad or value.layout is not torch.strided or value.is_meta:
            return None
        if not self._by_storage:
            self._by_storage = {_storage(tensor): (name, tensor) for name, tensor in self._tensors()}
        name, tensor = self._by_storage.get(_storage(value), ("", value))
        if not name or tensor.dtype != value.dtype or not value.nelement():
            return None
        return repr((VIEW, name, tuple(value.shape), value.stride(), value.storage_offset()))

    def key_of_group(self, value: dict[str, Any]) -> str | None:
        """What names a group of parameters of an optimizer, None for another dictionary."""
        return next((repr((VIEW, name)) for name, group in self._groups() if group is value), None)

    def of_key(self, key: str) -> Any:
        """This member's group of parameters, or the same view of its tensor. Raises LookupError."""
        _, name, *layout = ast.literal_eval(key)
        if not layout:
            return dict(self._groups())[name]
        shape, stride, offset = layout
        found = next((tensor for own, tensor in self._tensors() if own == name), None)
        if found is None:
            raise LookupError(name)
        return found.detach().as_strided(shape, stride, offset)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [value for name, value in self._sources.items() if name.startswith("optim") and value is not None]

    def _groups(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for place, optimizer in enumerate(self._optimizers()):
            yield from ((f"{place}.{number}", group) for number, group in enumerate(optimizer.param_groups))

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        model, optimizers = self._sources.get("model"), self._optimizers()
        named = [] if model is None else [*model.named_parameters(), *model.named_buffers()]
        found = [(f"model.{name}", tensor) for name, tensor in named]
        for place, optimizer in enumerate(optimizers):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for number, parameter in enumerate(parameters):
                held = optimizer.state.get(parameter, {})
                found += [(f"{place}.{number}.{name}", v) for name, v in held.items() if isinstance(v, torch.Tensor)]
        yield from ((name, tensor) for name, tensor in found if type(tensor) in (torch.Tensor, torch.nn.Parameter))


def _storage(tensor: torch.Tensor) -> int:
    return 0 if tensor.layout is not torch.strided or tensor.is_meta else tensor.untyped_storage().data_ptr()


@dataclass
class Origins:
    """``own``: the session's tensors. ``begin``: the walk before the first step."""

    own: OwnTensors = field(default_factory=lambda: OwnTensors({}))
    begin: Walk = field(default_factory=Walk)
    _by_id: dict[int, tuple[Path, Reference]] = field(default_factory=dict)
    _bases: dict[int, Path] = field(default_factory=dict)  # by memory: tensors and arrays of which there may be views
    _at: dict[Path, Reference] = field(default_factory=dict)
    _labels: dict[int, tuple[str, Any]] = field(default_factory=dict)  # of new objects, in the copies of one step
    _made: dict[str, Any] = field(default_factory=dict)  # by label: what was made from the copies of one step
    _taken: dict[int, tuple[str, Any]] = field(default_factory=dict)  # by id: what holds the copy of a label now
    _place: str = ""  # of the copies: the step and the loop
    _keys: dict[Path, str] = field(default_factory=dict)  # as text, "" where that cannot be read back

    def note(self, walk: Walk) -> None:
        """Remember what this walk has found, without keeping large objects alive."""
        self.begin = walk
        for path, visit in walk.places.items():
            value = visit.value
            known = self._by_id.get(id(value))
            reference = known[1] if known is not None else Reference(value)
            self._by_id.setdefault(id(value), (path, reference))
            self._at[path] = reference
            if (layout := layout_of(value)) is not None:
                self._bases.setdefault(layout[0], path)
        walk.places.clear()

    def path_of(self, value: Any) -> Path | None:
        """Where this object was before the first step; None for one that has been made since."""
        found = self._by_id.get(id(value))
        return found[0] if found is not None and found[1].is_of(value) else None

    def is_new(self, value: Any) -> bool:
        """Whether an object has been made since the first step, and it matters which one it is."""
        return is_followed(value) and self.path_of(value) is None

    def at(self, path: Path) -> Any:
        """The object that was at a path before the first step. Raises LookupError."""
        held = self._at.get(path)
        value = None if held is None else held.get()
        if value is None:
            raise LookupError(path)
        return value

    def noted(self, path: Path) -> Noted | None:
        """What was at a path before the first step, also where it was seen under another name; None for nothing."""
        if (found := self.begin.found.get(path)) is None and path in self._at:
            other = self.path_of(self._at[path].get())
            return None if other is None else self.begin.found.get(other)
        return found

    def key_of(self, value: Any) -> str | None:
        """As `copies.Known`."""
        if (path := self.path_of(value)) is None:
            if type(value) is dict:
                return self.own.key_of_group(value)
            return (isinstance(value, torch.Tensor) and self.own.key_of(value)) or self._key_of_part(value)
        if path not in self._keys:
            key = repr(path)
            self._keys[path] = key if path_of(key) else ""
        return self._keys[path] or None

    def of_key(self, key: str) -> Any:
        """As `copies.Known`."""
        if key.startswith(_PART):
            _, base, *layout = ast.literal_eval(key)
            return strided(self.at(base), *layout)
        return self.own.of_key(key) if self.is_view(key) else self.at(path_of(key))

    def _key_of_part(self, value: Any) -> str | None:
        """What names a view of a tensor or an array that each member had before the first step."""
        layout = layout_of(value)
        base = None if layout is None else self._bases.get(layout[0])
        if base is None or layout is None:
            return None
        with suppress(LookupError):  # its memory may belong to another one by now
            held = layout_of(self.at(base))
            if held is not None and (held[0], held[1]) == layout[:2] and path_of(repr(base)):
                return repr((PART_OF, base, *layout[2:]))
        return None

    def is_view(self, key: str) -> bool:
        """As `copies.Known`."""
        return key.startswith((_VIEW, _PART))

    def alive(self) -> list[Any]:
        """All objects that are still there: while a member takes the place of another, none may go."""
        return [reference.get() for reference in self._at.values()]

    def label_of(self, value: Any) -> str:
        """As `copies.Known`."""
        label, _ = self._labels.setdefault(id(value), (f"{self._place} {len(self._labels)}", value))
        return label

    def labelled(self, label: str, make: Callable[[], Any]) -> Any:
        """As `copies.Known`."""
        if label not in self._made:
            self._made[label] = make()
        return self._made[label]

    def unused(self, target: Any, label: str) -> Any:
        """As `copies.Known`."""
        taken, _ = self._taken.setdefault(id(target), (label, target))
        return target if taken == label else None

    def forget_new(self, *place: int) -> None:
        """The copies of another ``place`` in the run begin."""
        self._place = " ".join(map(str, place))
        self._labels, self._made, self._taken = {}, {}, {}
        self.own.forget()

    def canonical(self, path: Path, walk: Walk) -> Path | None:
        """The path, by what was there before the first step, of what a walk has found; None inside of a new object.

        What is in a new function or a tuple keeps its path: these are made anew all the time.
        """
        if (visit := walk.places.get(path)) is not None and is_followed(visit.value):
            return self.path_of(visit.value)
        if (visit := walk.places.get(path[:-1])) is None:
            return path
        holder = self._of(visit, path[:-1], walk)
        return None if holder is None else (*holder, path[-1])

    def _of(self, visit: Visit, path: Path, walk: Walk) -> Path | None:
        found = self.path_of(visit.value)
        if found is None and isinstance(visit.value, tuple):
            return self.place(path, walk)
        return path if found is None and not is_followed(visit.value) else found

    def replaced(self, walk: Walk) -> dict[Path, Visit]:
        """Places that hold another object than before, without those inside of new objects.

        What a tuple holds belongs to the place of the tuple, which cannot be changed.
        """
        found: dict[Path, Visit] = {}
        for path, visit in walk.places.items():
            matters = is_followed(visit.value) or self.path_of(visit.value) is not None
            if matters and (place := self.place(path, walk)) is not None:
                held = self._at.get(place)
                if place in self.begin.found if held is None else not held.is_of(visit.value):
                    outer = _of_tuple(path, walk)
                    there = place if outer == path else self.place(outer, walk)
                    if there is not None:
                        found[there] = walk.places[outer]
        return found

    def place(self, path: Path, walk: Walk) -> Path | None:
        """The path of a variable, an attribute or an item by its holder, None in a new object."""
        if (visit := walk.places.get(path[:-1])) is None:
            return path
        holder = self._of(visit, path[:-1], walk)
        return None if holder is None else (*holder, path[-1])

    def gone(self, walk: Walk) -> Iterator[Path]:
        """Attributes that objects had before the first step, and have lost."""
        here = {id(visit.value) for visit in walk.places.values()}
        for path in self.begin.found:
            holder = self._at.get(path[:-1]) if path[-1][0] == "attr" else None
            value = None if holder is None else holder.get()
            if id(value) in here and has_attributes(value) and path[-1][1] not in held_by(value):
                yield path

    def is_known(self, place: Path) -> bool:
        """Whether there was an object at this place."""
        return place in self._at


def _of_tuple(path: Path, walk: Walk) -> Path:
    """The path of the outermost of the tuples around a place, or the path itself."""
    while (visit := walk.places.get(path[:-1])) is not None and isinstance(visit.value, tuple):
        path = path[:-1]
    return path
