"""What a walk of everything that a cell can reach has found, by path; and what is different in a later walk."""

from __future__ import annotations

import ast
from collections.abc import Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Path = tuple[tuple[str, Any], ...]
REGISTERED = ("registered", "register()")  # the end of a path: what was registered with a function or a class


def path_of(key: str) -> Path:
    """The path that `repr` has written, () for one with keys that cannot be read, such as a data type of torch.

    What is new under such a key is seen by the shape of what holds it.
    """
    with suppress(ValueError, SyntaxError):
        path: Path = ast.literal_eval(key)
        return path
    return ()


@dataclass(frozen=True, slots=True)
class Noted:
    """What was seen at a path. ``holder`` and ``whole``: ids of the object that holds it and of the value itself.

    ``name`` is the last variable or attribute of own code on the path; ``kind`` says what it is: value, shape,
    iterator, cache, function, opaque or setting.
    """

    content: Hashable
    kind: str
    holder: int
    key: Any
    whole: int
    name: str
    at: int = 0  # for `value` of a library's object: the length of the path to it

    @property
    def misses(self) -> Any:
        """Of a cache: how often it had to compute."""
        return self.content[0] if isinstance(self.content, tuple) else None


@dataclass
class Walk:
    """What one walk has found.

    ``places``: every place that holds an object, in the order of the walk; several may hold the same one.
    ``touching``: names of objects of libraries that hold the session's own objects. ``aliases``: the other variables
    that lead to an object, by its id. ``cut``: whether there was more than is walked. ``variables``: those that the
    program has for objects of the session, by the session's name of each.
    """

    found: dict[Path, Noted] = field(default_factory=dict)
    places: dict[Path, Visit] = field(default_factory=dict)
    touching: set[str] = field(default_factory=set)
    aliases: dict[int, set[str]] = field(default_factory=dict)
    cut: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    holders: set[Path] = field(default_factory=set)  # of all objects, also of those in which nothing was found

    def as_named(self, path: Path) -> Path:
        """A path that begins with the program's own variable, where the program has one."""
        (kind, key), *steps = path
        name = self.variables.get(key) if kind == "session" else None
        return path if name is None else (("session", name), *steps)

    def first(self, value: Any) -> Path | None:
        """The path under which an object was seen first, None for one that was not seen."""
        return next((path for path, visit in self.places.items() if visit.value is value), None)

    def changed(self, later: Walk) -> dict[Path, Noted]:
        """What is different in a later walk, as it is there, with attributes that are new there."""
        held = self.holders.union(path[:length] for path in self.found for length in range(1, len(path)))
        return {
            path: noted
            for path, noted in later.found.items()
            if (self.found[path].content != noted.content if path in self.found else _is_new(path, held))
        }


def _is_new(path: Path, held: Collection[Path]) -> bool:
    return path[0][0] == "environ" or (path[-1][0] == "attr" and path[:-1] in held)


@dataclass(slots=True)
class Visit:
    """A value on the way of a walk; ``inside``: length of the path to the outermost object of a library around it."""

    value: Any
    path: Path
    holder: int
    key: Any
    name: str
    inside: int = 0


def leads_to(path: Path, other: Path) -> bool:
    """Whether what is at a path is the other one, or holds it."""
    return other[: len(path)] == path


def is_set(path: Path, noted: Noted, first: Noted | None) -> bool:
    """Whether a variable or an attribute of the program's own has got a value in place of none or of a plain one, or an
    empty container its content. A flag does not count: what a process did when it set that may be of this process.
    """
    empty = first is not None and first.kind == "shape" and isinstance(first.content, tuple) and first.content[1] == 0
    new = first is None or empty or (first.kind == "value" and not first.whole)
    flag = isinstance(noted.content, tuple) and noted.content[:1] == ("bool",)
    return new and not flag and noted.kind in ("value", "shape") and not noted.at and path[-1][0] != "item"


def is_kept_by_function(path: Path) -> bool:
    """Whether a closure or a default of a function leads there."""
    return any(kind in ("closure", "default") for kind, _ in path)
