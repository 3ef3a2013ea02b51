"""Values by the path on which a cell reaches them: finds them in another process, copies them, and puts copies back."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from ...core.errors import TrainingError
from ..comm.state_codec import is_array
from ..session.optimizer_state import access
from .copies.copier import Copier
from .copies.forms import FRESH, ITEMS, OBJECT, SKIPPED, Copy
from .frames import Locals, callers
from .origins import Origins
from .reached import digest, elements
from .value_kinds import PLAIN, Unfit, has_attributes, set_held
from .walk import Path

GONE = (
    "other members carry {name}, which this member, that joined after step {step}, does not have: make it before the "
    "loop on every member, or keep its values in the session, session.state"
)


class Tracer(Copier):
    """Copies nothing, and notes what would be: ids of ``whole`` values, and (id, attribute) ``pairs`` of others."""

    def __init__(self, own: Collection[int], attributes: frozenset[str] | None) -> None:
        super().__init__(own, attributes)
        self.notes: list[int | tuple[int, str]] = []
        self._seen: list[Any] = []  # no other object may get the id of one that was seen

    def copied(self, value: Any, before: Copy = None, path: str = "") -> Copy:
        """As `Copier.copied`, without the content of tensors."""
        if type(value) in PLAIN:
            return value
        mark = len(self.notes)
        self._seen.append(value)
        if (isinstance(value, torch.Tensor) or is_array(value)) and id(value) not in self._own:
            self.notes.append(id(value))
            return None
        try:
            copy = super().copied(value, None, path)
        except Unfit:
            del self.notes[mark:]
            raise
        if copy is SKIPPED:
            del self.notes[mark:]
        elif isinstance(value, torch.nn.Module):
            pairs = [note for note in self.notes[mark:] if isinstance(note, tuple)]
            self.notes[mark:] = [*map(id, value.state_dict(keep_vars=True).values()), *pairs]
        elif isinstance(value, torch.optim.Optimizer):
            self.notes[mark:] = [id(value), *(id(p) for group in value.param_groups for p in group["params"])]
        elif access(value) is not None:
            self.notes[mark:] = [id(value)]
        elif has_attributes(value) and isinstance(copy, dict) and OBJECT in copy:
            self.notes += [(id(value), name) for name in copy[OBJECT]] + ([id(value)] if ITEMS in copy else [])
        else:
            self.notes.append(id(value))
        return copy

    def attributes_of(self, holder: Any, names: Collection[str]) -> dict[str, Copy]:
        """As `Copier.attributes_of`."""
        found = super().attributes_of(holder, names)
        self.notes += [(id(holder), name) for name in found]
        return found


def text(path: Path) -> str:
    """A path as a person would write it."""
    (kind, key), steps = path[0], path[1:]
    if kind == "environ":
        return f"os.environ[{key!r}]"
    name = str(key if kind in ("session", "setting") else key[1])
    if kind == "global" and key[0] != "__main__":
        name = f"{key[0]}.{name}"
    for kind, key in steps:
        if kind in ("attr", "registered") and key not in ("__wrapped__", "__func__", "__self__"):
            name += f".{key}"
        elif kind == "item":
            name += f"[{key!r}]"
        elif kind == "closure":
            name = f"{key} (kept by {name})"
        elif kind == "default":
            name = f"{key} (a default argument of {name})"
    return name


def short(path: Path) -> str:
    """A path without what follows the first item of a container."""
    places = [place for place, (kind, _) in enumerate(path) if kind == "item"]
    return text(path[: places[0]]) + "[...]" if places else text(path)


def resolved(path: Path, sources: Mapping[str, Any]) -> Any:
    """The object at a path in this process. Raises LookupError."""
    (kind, key), steps = path[0], path[1:]
    if kind == "session":
        value = sources[key]
    elif kind == "environ":
        value = os.environ[key]
    else:
        value = _names(kind, key[0])[key[1]]
    return within(value, steps)


def within(value: Any, steps: Path) -> Any:
    """What the steps of a path lead to, from an object. Raises LookupError."""
    for step in steps:
        value = _get(value, *step)
    return value


def _names(kind: str, where: str) -> Any:
    if kind == "global":
        frame = next((f for f in callers() if f.f_globals.get("__name__") == where), None)
        return frame.f_globals if frame is not None else vars(sys.modules[where])
    return Locals(_frame(where))


def _frame(name: str) -> FrameType:
    found = next((frame for frame in callers() if frame.f_code.co_qualname == name), None)
    if found is None:
        raise KeyError(name)
    return found


def _get(value: Any, kind: str, key: Any) -> Any:
    try:
        if kind == "item":
            return value[key]
        if kind == "class":
            return type(value)
        if kind == "closure":
            return value.__closure__[value.__code__.co_freevars.index(key)].cell_contents
        if kind == "default":
            return _defaults(value)[key]
        found = value.__dict__[key] if isinstance(value, type) else getattr(value, key)
        found = getattr(found, "__func__", found) if isinstance(found, (staticmethod, classmethod)) else found
        return found.fget if isinstance(found, property) else found
    except (AttributeError, ValueError, TypeError, IndexError) as error:
        raise LookupError(key) from error


def _defaults(function: Any) -> dict[str, Any]:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = function.__defaults__ or ()
    return dict(zip(names[len(names) - len(given) :], given, strict=True)) | (function.__kwdefaults__ or {})


def _set_within(holder: Any, kind: str, key: Any, value: Any) -> None:
    if kind == "item":
        holder[key] = value
    elif kind == "class":
        holder.__class__ = value
    elif kind == "closure":
        holder.__closure__[holder.__code__.co_freevars.index(key)].cell_contents = value
    elif kind == "default":
        if key in (holder.__kwdefaults__ or {}):
            holder.__kwdefaults__[key] = value
        else:
            holder.__defaults__ = tuple((_defaults(holder) | {key: value})[name] for name in _defaults(holder))
    else:
        set_held(holder, key, value)


class CarriedPaths:
    """The paths whose values are carried, of one session."""

    def __init__(self, own: frozenset[int], sources: Mapping[str, Any], origins: Origins) -> None:
        self._copier = Copier(own, kinds=True)
        self._inner = Copier(own, kinds=True, known=origins, contents=True)  # of what containers hold
        self._made = Copier(own, None, sources["model"], kinds=True, known=origins)  # of objects that the loop has made
        self._origins = origins
        self._places: dict[Path, None] = {}  # that hold another object than before the first step
        self._own = own
        self._sources = sources
        self.carried: dict[Path, None] = {}

    def add(self, path: Path, most: int | None = None) -> str:
        """Carry what holds this path from now on; return "" or why that is impossible.

        With ``most``, only where it holds at most so many numbers.
        """
        unit = self._unit(path)
        if any(path[: len(place)] == place for place in self._places):
            return ""
        for one in dict.fromkeys([unit, path]):
            if any(one[: len(other)] == other for other in self.carried):
                return ""
            try:
                value = self.resolved(one)
                if most is not None and elements(value) > most:
                    return "large"
                if Tracer(self._own, None).copied(value) is not SKIPPED:
                    self.carried[one] = None
                    return ""
                why = f"a {type(value).__name__}"
            except Unfit as unfit:
                why = f"a {unfit.kind}"
            except LookupError:
                return "gone"
        return why

    def add_place(self, path: Path, value: Any) -> str:
        """Carry which object a place holds, from now on; return "" or why that is impossible."""
        if path in self._places:
            return ""
        if why := self.unfit(value):
            return why
        self._places[path] = None
        for other in [other for other in self.carried if other[: len(path)] == path]:
            del self.carried[other]
        return ""

    def unfit(self, value: Any) -> str:
        """Why a new object cannot travel, "" if it can."""
        try:
            if (copy := self._made.copied(value)) is SKIPPED:
                return f"a {type(value).__name__}"
            self._made.fresh(copy)
            return ""
        except Unfit as unfit:
            return f"a {unfit.kind}"

    def resolved(self, path: Path) -> Any:
        """The object at a path, by the objects that were there before the first step. Raises LookupError."""
        for size in range(len(path) - 1, 0, -1):
            if self._origins.is_known(path[:size]):
                with suppress(LookupError):
                    return within(self._origins.at(path[:size]), path[size:])
        return resolved(path, self._sources)

    def _unit(self, path: Path) -> Path:
        """The longest part of a path whose last step is no item of a container."""
        while len(path) > 1 and path[-1][0] == "item":
            path = path[:-1]
        return path

    def copied(self, before: Mapping[str, Copy]) -> dict[str, Copy]:
        """Copies of all values by their paths, as text."""
        found = {}
        for path in self.carried:
            key = repr(path)
            with suppress(LookupError, Unfit):
                copy = self._inner.copied(self.resolved(path), before.get(key))
                if copy is not SKIPPED:
                    found[key] = copy
        for path in self._places:
            with suppress(LookupError, Unfit):
                if (copy := self._made.copied(self.resolved(path))) is not SKIPPED:
                    found[repr(path)] = {FRESH: copy}
        return found

    def digests(self) -> dict[str, str]:
        """A digest for each value, by its path in words."""
        found = {}
        for path in self.carried:
            with suppress(LookupError):
                if (seen := digest(self.resolved(path), self._copier)) is not None:
                    found[text(path)] = seen
        return found

    def _has_root(self, path: Path) -> bool:
        """Whether this member has the variable in which a path begins; each turn of the loop may bind it anew."""
        if path[0][0] not in ("global", "frame") or len(path) == 1:
            return True
        with suppress(LookupError):
            resolved(path[:1], self._sources)
            return True
        return False

    def put_back(self, copies: Mapping[str, Copy], step: int) -> None:
        """Set the values to what the copies hold and carry them from now on. Raises TrainingError for what is gone."""
        for key, copy in copies.items():
            path: Path = ast.literal_eval(key)
            if not self._has_root(path):
                self.carried[path] = None
                continue
            try:
                self._put(path, copy)
            except (LookupError, Unfit, AttributeError, TypeError) as error:
                raise TrainingError(GONE.format(name=text(path), step=step)) from error

    def _put(self, path: Path, copy: Copy) -> None:
        if isinstance(copy, dict) and FRESH in copy:
            self._places[path] = None
            self.put(path, self._made.fresh(copy[FRESH]))
            return
        self.carried[path] = None
        before = None
        with suppress(LookupError):
            before = self.resolved(path)
            if (merged := self._inner.merged(before, copy)) is not before:
                self.put(path, merged)
            return
        self.put(path, self._inner.fresh(copy))

    def put(self, path: Path, value: Any) -> None:
        """Let the place at a path hold another value. Raises LookupError."""
        kind, key = path[-1]
        if kind == "environ":
            os.environ[key] = value
        elif kind in ("global", "frame"):
            _names(kind, key[0])[key[1]] = value
        else:
            holder = self._origins.at(path[:-1]) if self._origins.is_known(path[:-1]) else self.resolved(path[:-1])
            _set_within(holder, kind, key, value)
