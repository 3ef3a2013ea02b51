"""Results of a long benchmark, piece by piece, so that it may be interrupted and gone on with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.storage.store import Store, write_private

Result = dict[str, Any]


class Kept:
    """Results by name: in the directory ``place``, or only in memory where there is none.

    Several processes may share a directory while they work on different names. Raises SpecError where results of
    other ``settings`` are in it: they must not end in one report.
    """

    def __init__(self, place: str | os.PathLike[str] | None = None, **settings: int | str) -> None:
        self._place = Path(place) if place is not None else None
        self._results: dict[str, Result] = {}
        if self._place is not None:
            self._place.mkdir(parents=True, exist_ok=True)
            _agree(self._place / "settings", settings)
            for path in self._place.glob("*.json"):
                self._results[path.stem] = json.loads(path.read_text())

    def __contains__(self, name: str) -> bool:
        return name in self._results

    def __getitem__(self, name: str) -> Result:
        return self._results[name]

    def add(self, name: str, result: Result) -> None:
        """Keep a result; a reader of the directory finds all of it or none."""
        self._results[name] = result
        if self._place is not None:
            write_private(self._place / f"{name}.json", json.dumps(result).encode())

    def evidence(self, name: str, store: Store, job_id: str) -> None:
        """Keep the journal of a job that did not do what it should."""
        if self._place is not None:
            leave_out = shutil.ignore_patterns("*.sock", "secret")
            shutil.copytree(
                store.job(job_id).path, self._place / f"{name}-{job_id}", ignore=leave_out, dirs_exist_ok=True
            )


def _agree(path: Path, settings: dict[str, int | str]) -> None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        write_private(path, json.dumps(settings).encode())
        return
    if found != settings:
        raise SpecError(f"{path.parent} keeps results of {found}, not of {settings}: name another directory")
