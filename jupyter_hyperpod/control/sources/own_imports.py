"""Finds the person's own modules that a source imports, and records them in a job before any member imports them.

Only what the text says is found: ``import a``, ``from a.b import c`` and relative imports, at any depth. Modules of
installed packages are not looked at.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.spec import JobSpec
from ...core.units import few
from ...storage import included
from ...storage.source_record import SourceRecord
from ...storage.store import JobStore, Store

_OURS = __name__.partition(".")[0]


def found(source: str, folders: Sequence[str]) -> dict[str, bytes]:
    """Path -> content of the own modules that a source imports from these folders, and of those that they import.

    Files beyond the bounds of ``--include`` are left out.
    """
    contents: dict[str, bytes] = {}
    size = 0
    waiting = [(source, folder, "") for folder in folders]
    while waiting:
        text, root, package = waiting.pop()
        for name in _imported(text, package):
            for path, inside in _files(root, name) if name.partition(".")[0] != _OURS else ():
                if path in contents or len(contents) >= included.MAX_FILES:
                    continue
                with suppress(OSError, SyntaxError, ValueError):
                    content = Path(path).read_bytes()
                    if (size := size + len(content)) > included.MAX_BYTES:
                        return contents
                    contents[path] = content
                    waiting.extend((content.decode(), other, inside if other == root else "") for other in folders)
    return contents


def folders(fields: Mapping[str, Any]) -> list[str]:
    """The folders from which the members of a job import the person's own modules, by the job's fields."""
    script = os.path.dirname(str(fields.get("filename", ""))) if fields.get("script") else ""
    given = str((fields.get("env") or {}).get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    known = [script, str(fields.get("working_directory") or ""), *given.split(os.pathsep)]
    named = [os.path.abspath(folder) for folder in known if folder]
    return list(dict.fromkeys([*named, *map(os.path.realpath, named)]))  # the directory of a process is a real path


def bring(source: str, fields: Mapping[str, Any], included_folders: Sequence[included.Survey], job: Path) -> None:
    """Fill the directory of a new job: with the folders that it includes, and, of a trial, with what it imports.

    Raises StoreError, SpecError.
    """
    included.copy(included_folders, job)
    if fields.get("trial") is not None:
        kept = SourceRecord(job)
        for path, content in found(source, folders(fields)).items():
            kept.of(path, content)


def bring_again(earlier: JobStore, spec: JobSpec, job: Path) -> None:
    """Fill the directory of a job with what an earlier one has. Raises StoreError, SpecError."""
    included.copy_again(earlier.path, job)
    if _keeps_sources(earlier.spec(), spec):
        SourceRecord(job).take(earlier.path)


def since(store: Store, earlier: JobStore, spec: JobSpec) -> list[str]:
    """A sentence about the own modules that are not as an earlier job with the same code imported them.

    Of trials, only the first that is submitted again is looked at; `changed` is for them.
    """
    if spec.trial is not None or earlier.spec().backend != spec.backend:
        return []
    names = changed(store, earlier)
    runs = "as it was then" if _keeps_sources(earlier.spec(), spec) else "as it is now"
    return [f"since {earlier.id} began, {names} has changed: the new job runs it {runs}"] if names else []


def changed(store: Store, earlier: JobStore) -> str:
    """The names of own modules that are not as an earlier job imported them; "" where all are."""
    then, spec = SourceRecord(earlier.path), earlier.spec()
    fields = {name: getattr(spec, name) for name in ("script", "filename", "working_directory")}
    now = found(store.cell(spec.cell_digest), folders(fields))
    paths = [os.path.realpath(path) for path, content in now.items() if then.known(path) not in (None, content)]
    return few([os.path.basename(path) for path in dict.fromkeys(paths)])


def _keeps_sources(before: JobSpec, spec: JobSpec) -> bool:
    """Whether a job imports what an earlier one did: another trial of its sweep, or a trial that runs again."""
    return before.trial is not None and before.backend == spec.backend


def _imported(text: str, package: str) -> Iterator[str]:
    """The dotted names that a text imports, also those that may be names inside a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [above, node.module]))
            yield from (name for name in [base, *(f"{base}.{one.name}" for one in node.names)] if name)


def _files(root: str, name: str) -> Iterator[tuple[str, str]]:
    """The files that Python runs to import a dotted name from a folder, each with the package that it is in."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        place = os.path.join(root, *parts[:count])
        if os.path.isfile(package := os.path.join(place, "__init__.py")):
            yield package, ".".join(parts[:count])
        elif os.path.isfile(f"{place}.py"):
            yield f"{place}.py", ".".join(parts[: count - 1])
