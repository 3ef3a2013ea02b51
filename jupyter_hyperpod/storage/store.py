"""The job store: its layout on disk, and access to its cells and jobs. Private to its owner (0700, 0600), unless the
owner shares it (`sharing.py`).

<store>/cells/<sha256>           source of submitted cells, by digest
<store>/cluster/events/          journal of the cluster, one file per writer
<store>/cluster/                 the supervisor's lock, socket and log
<store>/jobs/<id>/spec.json the user's request
<store>/jobs/<id>/secret         key of the job's control connections
<store>/jobs/<id>/environment    values of the job's environment variables; removed when it has ended
<store>/jobs/<id>/fingerprint.json  Python, packages, project and devices of its submission; no values of variables
<store>/jobs/<id>/include/       sources that the job brought along
<store>/jobs/<id>/events/        facts, files of each writer
<store>/jobs/<id>/resources/     what the nodes have used, a journal of samples
<store>/jobs/<id>/view.json      the view at some event; readers begin there
<store>/jobs/<id>/commands/      requests, one file per writer; members/ holds those of members of a group
<store>/jobs/<id>/output/        output of ranks that the journal does not hold, rotated
<store>/jobs/<id>/fanout/        where ranks that load the same model find each other
<store>/schedules/<name>/        what runs at which times (`control/schedules/schedule_file.py`)
<store>/notebook-jobs/           locks of notebook jobs of jupyter-scheduler that are followed
<store>/sharing.json             the groups with which the store is shared
<store>/rows.cache               a cache: the rows of the run table, of jobs that have ended
<store>/mounts.json              the mount table; mounts/ holds the files of each attached mount
<store>/distributions.json       digests of installed packages, and environments/ holds those that were built from locks
<store>/reserve/                 room for commands on a full disk (`room.py`)
<store>/shared/                  the default `shared://` mount
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.backend_options import has_remote_head
from ..core.errors import Foreign, HyperpodError, NotFound, SpecError, StoreError
from ..core.names import is_job_id, validate_job_id
from ..core.spec import HIDDEN, MAX_CELL_BYTES, JobSpec
from ..system import portable
from ..system.users import user_name
from .access import file_mode
from .room import keep_room
from .sharing import open_job, owner_elsewhere, sharing_of

if TYPE_CHECKING:
    from .apart.head_files import HeadFiles

ENVIRONMENT_VARIABLE = "JUPYTER_HYPERPOD_STORE"
SHARED = "shared"
ENVIRONMENT = "environment"
CELLS_KEPT_S = 3600.0
ENDPOINT_FILE = "coordinator.json"  # in a job's directory: where its head listens (`storage.endpoint`)
ENDED_MARK = "ended"  # the file by which a job's supervisor marks that it has settled the job's end
NOTEBOOK_DIGEST = "notebook_digest"  # in the origin of a job: its notebook is stored as cells are
DELETED = ".deleted-"  # what a deleted job's directory is called until it is gone
_DIGEST = re.compile("[0-9a-f]{64}")
_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


def default_root() -> Path:
    """The store named by $JUPYTER_HYPERPOD_STORE, else ~/.local/state/jupyter_hyperpod (XDG)."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "jupyter_hyperpod"


def _suffix(text: str) -> str:
    """The end of the id of a job that is made once: a digest of what its submission is called."""
    return "".join(_ID_ALPHABET[byte % len(_ID_ALPHABET)] for byte in hashlib.sha256(text.encode()).digest()[:8])


@contextmanager
def _store_errors(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}") from error


def _read(path: Path) -> bytes:
    with _store_errors("read", path):
        return path.read_bytes()


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write `content` to `path` atomically, private unless `mode` differs. Raises StoreError; a failed write leaves
    nothing.
    """
    _write(path, content, mode, None)


def write_readable(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, for those who may read its directory. Raises StoreError."""
    _write(path, content, 0o600, file_mode(path.parent))


def _write(path: Path, content: bytes, mode: int, in_the_end: int | None) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with _store_errors("write", path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                if in_the_end not in (None, mode):
                    portable.set_mode(descriptor, in_the_end)  # whatever the umask
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def private_directory(path: Path) -> Path:
    """Create `path` (and its parents) with mode 0700 where missing. Raises StoreError."""
    with _store_errors("create", path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def create_first(path: Path, content: bytes = b"") -> bool:
    """True only for the one process, of all hosts, that creates this private file. Raises StoreError."""
    with _store_errors("write", path):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600)
        except FileExistsError:
            return False
        try:
            os.write(file, content)
        finally:
            os.close(file)
    return True


class JobStore:
    """One job's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.events = path / "events"
        self.commands = path / "commands"

    def session_end(self, session: int) -> Path:
        """The file of the state at the end of a session of the cell, for members that join in a later one."""
        return self.path / "sessions" / f"{session}.state"

    def leave_session_end(self, session: int) -> None:
        """Let all members find the file of `session_end`, which this one has written. Raises StoreError."""
        if (head := self._head()) is not None:
            head.leave_session_end(session, self.session_end(session))

    def find_session_end(self, session: int) -> Path:
        """`session_end`, with what any member has left there; no such file where none has. Raises StoreError."""
        if (head := self._head()) is not None:
            head.fetch_session_end(session, self.session_end(session))
        return self.session_end(session)

    def leave_values(self, path: Path) -> None:
        """Let the notebook find a file with the values that come back. Raises StoreError."""
        if (head := self._head()) is not None:
            head.leave_pulled(_read(path))

    def forget_session_ends(self) -> None:
        """Remove the files of `session_end`. Raises StoreError where the head does not answer."""
        shutil.rmtree(self.session_end(1).parent, ignore_errors=True)
        if (head := self._head()) is not None:
            head.forget_session_ends()

    def _head(self) -> HeadFiles | None:
        """The store with everything of the job, where this one is a pod's own; None where it is this one."""
        from .apart.head_files import of_job

        return of_job(self.path)

    def spec(self) -> JobSpec:
        """Read the specification; raises SpecError or StoreError."""
        path = self.path / "spec.json"
        try:
            return JobSpec.from_json(json.loads(_read(path)))
        except ValueError as error:
            raise SpecError(f"{path} is not JSON: {error}") from error

    def has_remote_head(self) -> bool:
        """Whether another supervisor looks after the job, where its head is; not of a job that cannot be read."""
        try:
            return has_remote_head(self.spec().backend_options)
        except HyperpodError:
            return False

    def environment(self) -> dict[str, str]:
        """Read the job's own environment variables. Raises SpecError, or StoreError where they have been removed."""
        names = self.spec().env
        if HIDDEN not in names.values():
            return dict(names)  # no variables, or a job of an earlier version, which wrote them into the specification
        path = self.path / ENVIRONMENT
        try:
            return {str(name): str(value) for name, value in json.loads(_read(path)).items()}
        except (ValueError, AttributeError):  # the original error may show a secret value
            raise StoreError(f"{path} is not an object in JSON") from None

    def forget_environment(self) -> None:
        """Remove the values of the job's environment variables, once it has ended. Raises StoreError."""
        with _store_errors("remove", self.path / ENVIRONMENT):
            (self.path / ENVIRONMENT).unlink(missing_ok=True)

    def secret(self) -> bytes:
        """Read the key of the job's control connections."""
        return _read(self.path / "secret")

    def claim(self, name: str) -> bool:
        """True only for the first process that ever claims ``name``. Raises StoreError."""
        if (head := self._head()) is not None:
            return head.claim(name)
        return create_first(private_directory(self.path / "claims") / name)


class Store:
    """The directory that holds cells, jobs and the cluster's own records."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root).absolute() if root is not None else default_root().absolute()
        self.cells = self.root / "cells"
        self.jobs = self.root / "jobs"
        self.cluster = self.root / "cluster"
        self.cluster_events = self.cluster / "events"
        self.shared = self.root / "shared"
        self._submitted: dict[str, int] = {}  # the jobs of the last list, and when each was submitted

    def prepare(self) -> Store:
        """Create the directories. Raises StoreError where that is impossible, and where others may change the store."""
        self.refuse_foreign()
        for path in (self.root, self.cells, self.jobs, self.cluster, self.cluster_events, self.shared):
            private_directory(path)
        keep_room(self.root)
        return self

    def refuse_file(self) -> Store:
        """Raise StoreError where a file has the store's name."""
        if self.root.is_file():
            raise StoreError(
                f"the store {self.root} is a file; name a directory: --store DIR, or ${ENVIRONMENT_VARIABLE}"
            )
        return self

    def refuse_foreign(self) -> None:
        """Raise Foreign where the store belongs to another user, StoreError where others may write in it."""
        try:
            found = self.root.stat()
        except OSError:
            return  # there is none yet, or what is done next says why it cannot be used
        elsewhere = f"take a store of your own with ${ENVIRONMENT_VARIABLE}"
        if portable.user_id() not in (0, found.st_uid):
            only = ", who alone submits jobs, deletes them and starts the cluster" if self.is_shared() else ""
            raise Foreign(f"the store {self.root} belongs to {user_name(found.st_uid)}{only}; {elsewhere}")
        mode = portable.permissions(found)
        by_group = mode & stat.S_IWGRP and found.st_gid != portable.group_id()
        if by_group or mode & stat.S_IWOTH:
            raise StoreError(
                f"other users may write in the store {self.root}, mode {mode:04o}, and run "
                f"programs as you: run `chmod go-w {shlex.quote(os.fspath(self.root))}`, or {elsewhere}"
            )

    def is_shared(self) -> bool:
        """Whether the user of this process may read the settings of a store that is shared."""
        try:
            return sharing_of(self.root) is not None
        except StoreError:
            return False

    def refuse_private(self) -> None:
        """Raise StoreError where the store belongs to another user who does not share it with this one."""
        owner = owner_elsewhere(self.root)
        if owner and not portable.may_access(self.jobs, os.R_OK | os.X_OK):
            raise StoreError(
                f"the store {self.root} belongs to {owner}, who does not share it with you; ask {owner} to run "
                "`jupyter hyperpod share GROUP` with a group of yours, then log in again"
            )

    def put_cell(self, source: str) -> str:
        """Store a cell's source and return its SHA-256 (hex). Raises SpecError for an oversized cell."""
        try:
            content = source.encode()
        except UnicodeEncodeError as error:
            raise SpecError(f"the cell cannot be stored as UTF-8: {error}") from error
        if len(content) > MAX_CELL_BYTES:
            raise SpecError(
                f"the cell is {len(content) / 2**20:.0f} MiB; the limit is {MAX_CELL_BYTES // 2**20} MiB: "
                "put data in a file on shared storage and read it from there"
            )
        digest = hashlib.sha256(content).hexdigest()
        try:
            os.utime(self.cells / digest)  # a job is about to be made of it: `forget_cells` leaves it alone
        except OSError:
            write_readable(self.cells / digest, content)
        return digest

    def forget_cells(self) -> None:
        """Remove the source of cells of which no job is left, an hour after the last submission. Raises StoreError.

        So are notebooks and pushed values removed, which are stored as cells are.
        """
        try:
            specs = [self.job(job_id).spec() for job_id in self.job_ids()]
        except (SpecError, NotFound):
            return  # a job that cannot be read may need any of them
        known = {digest for spec in specs for digest in (spec.cell_digest, spec.origin.get(NOTEBOOK_DIGEST))}
        sources = [self.cells / spec.cell_digest for spec in specs]  # those of pushed values are in the sources
        for path in {*sources, *self.root.glob("schedules/*/spec.json")}:
            with suppress(OSError, ValueError):
                known.update(_DIGEST.findall(path.read_text()))
        before_s = time.time() - CELLS_KEPT_S
        with _store_errors("remove sources from", self.cells):
            for path in self.cells.iterdir():
                unused = _DIGEST.fullmatch(path.name) and path.name not in known
                if unused and path.stat().st_mtime < before_s:
                    path.unlink(missing_ok=True)

    def cell(self, digest: str) -> str:
        """Return a cell's source; raises NotFound."""
        path = self.cells / digest
        if not (_DIGEST.fullmatch(digest) and path.exists()):
            raise NotFound(f"no cell with digest {digest[:12]!r} in {self.cells}")
        return _read(path).decode()

    def create_job(self, spec: JobSpec, fill: Callable[[Path], None] | None = None, once: str = "") -> JobStore:
        """Create a job's directory and return it. A full disk leaves no half-made job behind.

        ``fill`` may write more files into the directory, before the job is seen. ``once``: of a name and this text
        there is one job only, which `job_made` finds.
        """
        suffix = _suffix(once) if once else "".join(secrets.choice(_ID_ALPHABET) for _ in range(8))
        final = self.jobs / f"{spec.name}-{suffix}"
        building = self.jobs / f".new-{suffix}{f'-{secrets.token_hex(4)}' if once else ''}"
        try:
            for path in (building, building / "events", building / "commands"):
                private_directory(path)
            write_private(building / "spec.json", json.dumps(spec.to_json()).encode())
            write_private(building / "secret", secrets.token_bytes(32))
            if spec.env:
                write_private(building / ENVIRONMENT, json.dumps(dict(spec.env)).encode())
            if fill is not None:
                fill(building)
            if shared := sharing_of(self.root):
                open_job(building, shared)
            with _store_errors("create", final):
                os.rename(building, final)
        except (StoreError, SpecError):
            shutil.rmtree(building, ignore_errors=True)
            raise
        return JobStore(final)

    def job_made(self, name: str, once: str) -> JobStore | None:
        """The job of this name that was created with the same ``once``; None where there is none."""
        path = self.jobs / f"{name}-{_suffix(once)}"
        return JobStore(path) if path.is_dir() else None

    def remove_job(self, job_id: str) -> None:
        """Delete the directory of a job whose creation failed."""
        shutil.rmtree(self.job(job_id).path)

    def job(self, job_id: str) -> JobStore:
        """Return an existing job's directory; raises SpecError for a malformed id, NotFound for an unknown one."""
        path = self.jobs / validate_job_id(job_id)
        self.refuse_private()
        if not path.is_dir():
            raise NotFound(f"no job {job_id}; `jupyter hyperpod list` shows the jobs in {self.jobs}")
        return JobStore(path)

    def job_ids(self) -> list[str]:
        """All job ids, newest first. Who asks this object again and again reads the time of new jobs only."""
        self.refuse_private()
        try:
            names = os.listdir(self.jobs)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read {self.jobs}: {error.strerror}") from error
        known = self._submitted
        jobs = [name for name in names if name in known or is_job_id(name)]
        submitted = {name: known.get(name) or self._submitted_ns(name) for name in jobs}
        self._submitted = submitted  # another thread may have set it meanwhile, to the same times
        return sorted(jobs, key=submitted.__getitem__, reverse=True)

    def _submitted_ns(self, job_id: str) -> int:
        try:
            return os.stat(f"{self.jobs}/{job_id}/spec.json").st_mtime_ns
        except OSError:
            return 0
