"""Which source files and classes are the person's own: not of an installed package, of Python or of this package."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...system.addresses import SOCKETS_ONLY_VARIABLE

THIS_PACKAGE = str(Path(__file__).parents[2]) + os.sep  # which lies elsewhere in a checkout
_FOREIGN = tuple(
    {folder for folder in (*sys.path, sys.prefix, sys.base_prefix) if "python3" in folder or "site-" in folder}
)

_OF_A_MACHINE = {"/tmp", "/var/tmp", "/dev/shm"}
_MADE = re.compile(r"tmp[a-z0-9_]{8}")
FACTORIES = ("builtins.dict", "builtins.float", "builtins.int", "builtins.list", "builtins.set", "collections.deque")


@lru_cache(maxsize=4096)
def is_own_file(path: str) -> bool:
    """Whether a source file is the person's own."""
    return not path.startswith((*_FOREIGN, THIS_PACKAGE, "<frozen"))


def is_made_by_tempfile(path: str) -> bool:
    """Whether a path leads into a temporary folder, or a file, that `tempfile` has made for one process.

    Its names are random, and only the owner may read what it makes: /tmp/tmp_results is no such folder.
    """
    top, whole = (Path(one).resolve() for one in (tempfile.gettempdir(), path))
    around = [one for one in (whole, *whole.parents) if top in one.parents]
    return any(_MADE.fullmatch(one.name.partition(".")[0]) and _is_private(one) for one in around)


def is_of_a_machine(path: str) -> bool:
    """Whether a path leads into a folder of temporary files, and nodes are machines, each with one of its own."""
    around = set(map(str, Path(path).resolve().parents))
    return are_apart() and not _OF_A_MACHINE.isdisjoint(around)


def are_apart() -> bool:
    """Whether each node is a machine, with files of its own."""
    return bool(os.environ.get(SOCKETS_ONLY_VARIABLE))


def _is_private(path: Path) -> bool:
    try:
        return not path.stat().st_mode & 0o077
    except OSError:
        return False


def file_of(kind: type) -> str:
    """The file that a class is from; one that is nobody's where it has none."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen"


def is_own_class(kind: type) -> bool:
    """Whether a class is from a cell or from the person's own file."""
    return kind.__module__ == "__main__" or is_own_file(file_of(kind))


def own_class(name: str) -> type | None:
    """The person's own class of this name, such as ``__main__.Record``, or None."""
    found = _class(name)
    return found if found is not None and is_own_class(found) else None


def tuple_class(name: str) -> type[tuple[Any, ...]] | None:
    """The person's own class of named tuples of this name, or torch's, or None."""
    found = _class(name)
    fits = found is not None and issubclass(found, tuple)
    return (
        found
        if fits and found is not None and (is_own_class(found) or name.startswith("torch.return_types."))
        else None
    )


def factory_of(value: Any) -> str | None:
    """What names the default factory of a dictionary, "" where nothing does, None where it has none."""
    factory = getattr(value, "default_factory", None)
    if factory is None:
        return None
    name = f"{factory.__module__}.{factory.__qualname__}" if isinstance(factory, type) else ""
    return name if name and _class(name) is factory and (name in FACTORIES or own_class(name)) else ""


def dictionary(kind: str, factory: str | None, items: dict[Any, Any]) -> Any:
    """A dictionary of the class ``kind``. Raises LookupError where its default factory has no name."""
    if kind == "defaultdict":
        made = _class(factory) if factory and factory in FACTORIES else own_class(factory or "")
        if made is None and factory is not None:
            raise LookupError(factory)
        return defaultdict(made, items)
    return OrderedDict(items) if kind == "OrderedDict" else Counter(items) if kind == "Counter" else items


def plain_items(value: Any) -> Any:
    """The items of a container of the program's own class, in one of Python's own."""
    if isinstance(value, deque):
        return deque(value, value.maxlen)
    return dict(value) if isinstance(value, dict) else _base(value)(value)


def set_items(target: Any, items: Any) -> None:
    """Let a container of the program's own class hold these items, without a call of its own methods."""
    base = _base(target)
    base.clear(target)
    if isinstance(target, dict):
        for key, item in items.items():
            base.__setitem__(target, key, item)
    else:
        (base.update if isinstance(target, set) else base.extend)(target, items)


def _base(value: Any) -> Any:
    return next(base for base in (OrderedDict, dict, list, set, deque) if isinstance(value, base))


def _class(name: str) -> type | None:
    """The class of this name among the modules that are loaded, or None."""
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:place]))
        for part in parts[place:] if found is not None else ():
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    return None
