"""Which source files and classes are the person's own: neither of an installed package nor of Python itself."""

from __future__ import annotations

import sys

_FOREIGN = tuple(
    {folder for folder in (*sys.path, sys.prefix, sys.base_prefix) if "python3" in folder or "site-" in folder}
)


def is_own_file(path: str) -> bool:
    """Whether a source file is the person's own."""
    return not any(path.startswith(folder) for folder in _FOREIGN) and not path.startswith("<frozen")


def file_of(kind: type) -> str:
    """The file that a class is from; one that is nobody's where it has none."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen"


def is_own_class(kind: type) -> bool:
    """Whether a class is from a cell or from the person's own file."""
    return kind.__module__ == "__main__" or is_own_file(file_of(kind))


def own_class(name: str) -> type | None:
    """The person's own class of this name, such as ``__main__.Record``, or None."""
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:place]))
        for part in parts[place:] if found is not None else ():
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found if is_own_class(found) else None
    return None
