"""Imports the person's own modules as the job's first member found them: a file may be edited while the job runs."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType

from ...core.errors import Conflict, HyperpodError
from ...core.names import may_be_trial
from ...storage.source_record import SourceRecord
from ...storage.store import JobStore
from ..program.own_files import is_own_file

CHANGED = "{path} has changed since this job began; its members run it as it was then. Submit again to run it as it is"
DIFFERS = (
    "{path} is not what {other}, another trial of this sweep, imported: it was changed in between, so their numbers "
    "cannot be compared. Put it back, or begin a new sweep"
)


class RecordedLoader(SourceFileLoader):
    """Loads a module from the job's record of sources."""

    def __init__(self, name: str, path: str, record: SourceRecord, job: JobStore) -> None:
        super().__init__(name, path)
        self._record, self._job = record, job

    def get_code(self, fullname: str) -> CodeType:
        """Compile the recorded source; tracebacks and the analysis of loops read it, too."""
        path = self.get_filename(fullname)
        found = self.get_data(path)
        new = self._record.known(path) is None
        source = self._record.of(path, found)
        if new:  # recorded before it is compared: of two trials that begin together, one sees the other
            _check_other_trials(self._job, path, source)
        if source != found:
            print(CHANGED.format(path=path), file=sys.stderr, flush=True)
        text = decode_source(source)
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        code: CodeType = self.source_to_code(source, path)
        return code

    def get_source(self, fullname: str) -> str:
        """The recorded text."""
        path = self.get_filename(fullname)
        return decode_source(self._record.of(path, self.get_data(path)))


class OwnModules(MetaPathFinder):
    """Finds modules as Python does, and lets the person's own be loaded from the record."""

    def __init__(self, job: JobStore) -> None:
        self._record, self._job = SourceRecord(job.path), job

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders say, with another loader for a source file of the person's own."""
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        origin = "" if found is None else found.origin or ""
        if found and type(found.loader) is SourceFileLoader and is_own_file(origin):
            found.loader = RecordedLoader(fullname, origin, self._record, self._job)
        return found


def record_own_modules(job: Path) -> None:
    """From now on this process imports the person's own modules from the record in the job's directory."""
    sys.meta_path.insert(0, OwnModules(JobStore(job)))


def _check_other_trials(job: JobStore, path: str, source: bytes) -> None:
    """Raise Conflict where another trial of the job's sweep has imported another version of a file."""
    if (trial := job.spec().trial) is None:
        return
    for other in sorted(job.path.parent.iterdir()):
        if other != job.path and may_be_trial(other.name, trial.sweep):
            if SourceRecord(other).known(path) in (None, source):
                continue
            theirs = None
            with suppress(HyperpodError):  # a job that was deleted meanwhile
                theirs = JobStore(other).spec().trial
            if theirs is not None and theirs.sweep == trial.sweep:
                raise Conflict(DIFFERS.format(path=path, other=other.name))
