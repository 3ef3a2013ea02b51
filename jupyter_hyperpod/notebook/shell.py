"""The notebook that the magics work in: its store, its variables, and the jobs shown under its cells."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

from IPython.core.magic import Magics
from traitlets import Float, Unicode

from ..control import jobs
from ..core.errors import SpecError
from ..storage.store import JobStore, Store
from ..storage.values import pulled
from . import stream
from .output import JobDisplay

STOP_WAIT_S = 10.0
_NOT_DEFINED = re.compile(r"NameError\b.*: name '(\w+)' is not defined")


def is_kernel(shell: Any) -> bool:
    """Tell whether this IPython, None where there is none, is the kernel of a front end and no terminal."""
    return getattr(shell, "kernel", None) is not None


class Notebook(Magics):
    """One notebook or IPython shell."""

    store = Unicode("", help="Directory of jobs and cluster; empty means $JUPYTER_HYPERPOD_STORE or the default.").tag(
        config=True
    )
    lost_after_s = Float(60.0, help="Seconds without news and supervisor until a cell gives up.").tag(config=True)

    def __init__(self, shell: Any, **options: Any) -> None:
        super().__init__(shell, **options)
        self._shell: Any = shell
        self.last_job = ""
        self._displays: dict[str, list[JobDisplay]] = {}

    def open_store(self) -> Store:
        """Return the store of the traits, else of the environment."""
        return Store(self.store or None)

    def namespace(self) -> dict[str, Any]:
        """Return the notebook's variables."""
        return dict(self._shell.user_ns)

    def in_kernel(self) -> bool:
        """Tell whether a front end shows rich output, rather than a terminal."""
        return is_kernel(self._shell)

    def next_cell(self, text: str) -> None:
        """Put a new cell with this text below the one that runs; in a terminal, on the next prompt."""
        self._shell.set_next_input(text)

    def _display(self, store: Store, job_id: str, *, streams: bool) -> JobDisplay | None:
        if not self.in_kernel():
            return None
        display = JobDisplay(str(store.root), store.job(job_id).spec().cell_digest, streams)
        self._displays.setdefault(job_id, []).append(display)
        return display

    def show_once(self, store: Store, job_id: str) -> None:
        """Show a job without following it."""
        display = self._display(store, job_id, streams=False)
        if display is not None:
            display.show(jobs.job_view(store, job_id))
        print(f"{job_id} runs in the background; follow it with: %hyperpod attach {job_id}", flush=True)

    def show_finished(self, store: Store, job_id: str) -> None:
        """Show a job that has ended, where a front end shows rich output."""
        display = self._display(store, job_id, streams=False)
        if display is not None:
            display.show(jobs.job_view(store, job_id))

    def show_warnings(self, store: Store, job_id: str) -> None:
        """Print where the members of a new job will have another environment than this notebook."""
        for text in jobs.submission_warnings(store, job_id):
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def _pull(self, job: JobStore) -> None:
        """Define the values that the job's specification asks for. Raises SpecError for those that did not come."""
        if job.spec().pull:
            values, problems = pulled(job.path)
            self._shell.push(values)
            if problems:
                raise SpecError(f"--pull: {'; '.join(problems)}")

    def _push_hint(self, reason: str) -> str:
        """What to do where a job has failed because it lacks a variable that this notebook has; "" for another end."""
        name = missing[1] if (missing := _NOT_DEFINED.search(reason)) else ""
        if not name or name not in self._shell.user_ns:
            return ""
        return f"{name} is a variable of this notebook, and a job has none of those: give it with --push {name}"

    def attach(self, store: Store, job_id: str, *, cancel: bool = False) -> None:
        """Stream a job until it ends; an interrupt leaves it running, or stops it if `cancel`."""
        try:
            view = stream.stream(store, job_id, self._display(store, job_id, streams=True), self.lost_after_s)
            if view["state"] == "succeeded":
                self._pull(store.job(job_id))
        except stream.JobFailed as failed:
            if hint := self._push_hint(str(failed)):
                failed.advise(hint)
            raise
        except KeyboardInterrupt:
            if not cancel:
                print(f"detached; {job_id} goes on. Attach again with: %hyperpod attach {job_id}", flush=True)
                return
            jobs.stop(store, job_id, reason=f"{jobs.person()} interrupted the cell")
            print(f"{job_id} was asked to stop", flush=True)
            with suppress(TimeoutError):
                jobs.wait(store, job_id, timeout_s=STOP_WAIT_S)
        finally:
            view = jobs.job_view(store, job_id)
            for display in self._displays.get(job_id, ()):  # those of earlier cells, too
                display.show(view)
