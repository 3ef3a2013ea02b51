"""The objects that a cell could reach before its first step: what tells one object from another in other processes.

All members run the same code until then, so each of them has an object of its own at the same path. A variable or an
attribute that holds another one of these objects later, such as the next stage of a list of stages, is carried as that
path, and no content is written into the wrong object.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .readings import is_iterator
from .value_kinds import PLAIN, has_attributes, held_by
from .walk import Noted, Path, Visit, Walk, path_of

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
    """An object that is remembered, and is not kept alive if it is large. Of a large list only the address is kept."""

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        self._get: Callable[[], Any] | None = None
        try:
            self._get = weakref.ref(value)
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


@dataclass
class Origins:
    """``begin``: the walk before the first step."""

    begin: Walk = field(default_factory=Walk)
    _by_id: dict[int, tuple[Path, Reference]] = field(default_factory=dict)
    _at: dict[Path, Reference] = field(default_factory=dict)
    _labels: dict[int, tuple[int, Any]] = field(default_factory=dict)  # of new objects, in the copies of one step
    _made: dict[int, Any] = field(default_factory=dict)  # by label: what was made from the copies of one step
    _numbers: Iterator[int] = field(default_factory=itertools.count)
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
            return None
        if path not in self._keys:
            key = repr(path)
            self._keys[path] = key if path_of(key) else ""
        return self._keys[path] or None

    def of_key(self, key: str) -> Any:
        """As `copies.Known`."""
        return self.at(path_of(key))

    def alive(self) -> list[Any]:
        """All objects that are still there: while a member takes the place of another, none may go."""
        return [reference.get() for reference in self._at.values()]

    def label_of(self, value: Any) -> int:
        """As `copies.Known`."""
        label, _ = self._labels.setdefault(id(value), (next(self._numbers), value))
        return label

    def labelled(self, label: int, make: Callable[[], Any]) -> Any:
        """As `copies.Known`."""
        if label not in self._made:
            self._made[label] = make()
        return self._made[label]

    def forget_new(self) -> None:
        """The copies of another step begin."""
        self._labels, self._made = {}, {}

    def canonical(self, path: Path, walk: Walk) -> Path | None:
        """The path, by what was there before the first step, of what a walk has found; None inside of a new object.

        What is in a new function or a tuple keeps its path: these are made anew all the time.
        """
        if (visit := walk.places.get(path)) is not None and is_followed(visit.value):
            return self.path_of(visit.value)
        if (visit := walk.places.get(path[:-1])) is None:
            return path
        holder = self._of(visit, path[:-1])
        return None if holder is None else (*holder, path[-1])

    def _of(self, visit: Visit, path: Path) -> Path | None:
        found = self.path_of(visit.value)
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
                    found[place if outer == path else self.place(outer, walk) or place] = walk.places[outer]
        return found

    def place(self, path: Path, walk: Walk) -> Path | None:
        """The path of a variable, an attribute or an item by its holder, None in a new object."""
        if (visit := walk.places.get(path[:-1])) is None:
            return path
        holder = self._of(visit, path[:-1])
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
