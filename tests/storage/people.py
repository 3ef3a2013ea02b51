"""Real users of the operating system, by numbers alone: what is run as one of them runs in a child process."""

from __future__ import annotations

import codecs
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.spec import JobSpec, TrialSpec
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.folded import FoldedJournal
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store

SOURCE = "# %% code cell 1 of book.ipynb\nprint('hello')"
OWNER, OPERATOR, READER, STRANGER = 61001, 61002, 61003, 61004
READERS, OPERATORS = 62001, 62002
# whoever operates must also be in the group that reads
GROUPS = {OWNER: (READERS, OPERATORS), OPERATOR: (READERS, OPERATORS), READER: (READERS,), STRANGER: ()}

# loaded here: another user may be unable to read where Python is installed
for _encoding in ("utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "ascii", "latin-1", "idna"):
    codecs.lookup(_encoding)


def as_user(uid: int, act: Callable[[], Any]) -> Any:
    """What ``act`` returns, as JSON, in a child process of that user; "Name: text" of the exception that it raises."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            gc.disable()  # it would touch, and so copy, all that the tests before have left
            os.setgroups(list(GROUPS[uid]))
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            try:
                answer = json.dumps(act())
            except BaseException as error:
                answer = json.dumps(f"{type(error).__name__}: {error}")
                if isinstance(error, AssertionError):
                    traceback.print_exc(file=sys.stderr)
            with os.fdopen(write, "w") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(answer)


def pass_through(path: Path, names: Sequence[str] = ()) -> None:
    """Let everybody through the directories above ``path``, as they are in a place that several people share."""
    for above in (path, *path.parents):
        if above.stat().st_mode & 0o777 == 0o700:
            above.chmod(0o711)


def make_job(store: Store, name: str, trial: TrialSpec | None = None) -> str:
    """A job that waits for its nodes; its id."""
    job = store.create_job(
        JobSpec(
            name=name, cell_digest=store.put_cell(f"{SOURCE}  # {name}"), nodes=2, env={"TOKEN": "xyzzy"}, trial=trial
        )
    )
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
    record.leave(job.path, {"v": 1, "python": {"version": "3.11"}, "packages": {"torch": ["2.0", "", ""]}})
    FoldedJournal(job).save()
    return job.id


def second(job: JobStore) -> JobStore:
    """The job of the same store that was made after the store was shared."""
    store = Store(job.path.parent.parent)
    return store.job(next(name for name in store.job_ids() if name.startswith("second")))
