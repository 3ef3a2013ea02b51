"""The first program of a pod that is kept: it forks the process of each job from an interpreter that has imported much.

    python -m jupyter_hyperpod.backends.kubernetes.warm.keeper --preload a,b,c ORDER

It never becomes part of a job: it has no variable of one, reads none of its code, and lets nothing of one stay behind
when it waits for the next. It ends where that is not possible, where a job's process ends otherwise than well, where
the job goes on elsewhere, and when nobody has needed it for as long as it was told.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ....core.errors import HyperpodError
from ....storage import endpoint
from ....storage.store import ENDPOINT_FILE
from ....system.diagnostics import note, open_log
from ....system.processes import adopt_orphans, thread_names
from ...forked import become, run_and_exit
from ...preload import preload, ready_to_fork
from ...source import source_digest
from . import leftovers
from .doorway import ANSWER, ASKED, MEMORY, REFUSED, TAKEN
from .pod_order import PodOrder

JOB_DIRECTORY = "HYPERPOD_JOB_DIR"
PROCESS = "hyperpod.pid"  # as `manifests.PROCESS` has it
IN_A_POD = "KUBERNETES_SERVICE_HOST"  # a variable that every pod has
SCRATCH = ("tmp", "var/tmp")
READY = "this pod is as a new one would be, and waits for a job"
ANSWERED_S = 0.1  # an answer that nobody has read ends with this process
OVER_S, LOOK_S = 5.0, 0.02  # a coordinator says that its job is over when the last of its members has left


class Keeper:
    """State of one keeper; `run` is its whole life."""

    def __init__(self, root: Path, later: Sequence[str], digest: str, environment: Mapping[str, str]) -> None:
        """``root``: of the container's files. ``environment``: variables as they were before anything was imported,
        which may set some."""
        self._memory = root / MEMORY[1:]
        self._later, self._digest, self._environment = list(later), digest, environment
        self._child = 0
        self._told_to_end = False
        self._unwritten, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the image stays as it is
        scratch = [str(root / place) for place in SCRATCH]
        self._files = leftovers.ContainerFiles(str(root), scratch, [str(self._memory)])
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)

    def run(self, order: PodOrder) -> int:
        """Run this job and those that follow; the exit status of the pod."""
        adopt_orphans()
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)
        if is_over(order):  # the cluster has made another pod in place of one that was used again
            note(f"{order.plan.job_id} has ended")
            return 0
        following: PodOrder | None = order
        status = 0
        while following is not None:
            status = self._serve(following)
            if status or not following.keep_s or not self._ends_with_its_job(following):
                break
            following = self._next(following.keep_s)
        leftovers.end_descendants()
        return 128 - status if status < 0 else status

    def _serve(self, order: PodOrder) -> int:
        """Run a job's process to its end; its exit status, negative for a signal."""
        log, me = open_log(Path(order.plan.log_directory), order.name), os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self._child = os.fork()
        if self._child == 0:
            run_and_exit(lambda: self._become(order, log, me))
        os.close(log)
        (self._memory / PROCESS).write_text(f"{self._child}\n")
        if self._told_to_end:
            self._on_signal(signal.SIGTERM)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._child:
                self._child = 0
                return os.waitstatus_to_exitcode(status)

    def _become(self, order: PodOrder, log: int, parent: int) -> int:
        signal.set_wakeup_fd(-1)
        sys.dont_write_bytecode = self._unwritten
        os.environ.clear()
        os.environ.update(self._environment)
        place = {"PWD": order.plan.working_directory}  # which the shell of another pod sets
        return become(order.plan, order.plan.module, log, parent, place, leads=True)

    def _on_signal(self, number: int, _: object = None) -> None:
        self._told_to_end = True
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _ends_with_its_job(self, order: PodOrder) -> bool:
        """Whether the job is over, so that its process has not left others that go on."""
        until_s = time.monotonic() + OVER_S
        while not self._told_to_end:
            if is_over(order):
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(LOOK_S)
        return False

    def _next(self, keep_s: float) -> PodOrder | None:
        """Wait for the next job; None where none comes, or where this pod is not what a new one would be."""
        until_s = time.monotonic() + keep_s
        if not leftovers.end_descendants():
            note("this pod ends: a process of its job does not")
            return None
        leftovers.empty(str(self._memory))
        doors = [self._memory / name for name in (ASKED, ANSWER)]
        for path in doors:  # before the rest is done: the next job may be there already
            os.mkfifo(path, 0o600)
        asked, answer = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for path in doors)
        if why := self._unfit():
            note(f"this pod ends: {why}")
            return None
        note(READY)
        line = self._heard(asked, until_s)
        os.unlink(doors[0])
        os.close(asked)
        return None if line is None else self._accepted(line, answer)

    def _unfit(self) -> str:
        """Why this pod cannot be made what a new one would be, "" where it is that now."""
        preload(self._later)
        self._later = []
        if len(thread_names()) > 1:
            return "what it has imported has started threads"
        return leftovers.kept_by_kernel() or self._files.restore() or self._stale()

    def _accepted(self, line: str, answer: int) -> PodOrder | None:
        try:
            if why := self._stale():
                raise HyperpodError(why)
            order = PodOrder.from_line(line)
        except HyperpodError as error:
            os.write(answer, f"{REFUSED} {error}\n".encode())
            note(f"this pod ends: {error}")
            time.sleep(ANSWERED_S)
            return None
        os.write(answer, f"{TAKEN}\n".encode())
        return order

    def _heard(self, asked: int, until_s: float) -> str | None:
        """A line from the pipe; None where none has come in time, or this process is to end."""
        waiting, content = select.poll(), b""
        for descriptor in (asked, self._woken):
            waiting.register(descriptor, select.POLLIN)
        while not self._told_to_end and not content.endswith(b"\n"):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            waiting.poll(left_s * 1000)
            with suppress(BlockingIOError):
                content += os.read(asked, 1 << 16)
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 10)
        return None if self._told_to_end else content.decode(errors="replace")

    def _stale(self) -> str:
        return "" if source_digest() == self._digest else "the installed source has changed"


def is_over(order: PodOrder) -> bool:
    """Whether the coordinator of a job has left word that it has ended."""
    try:
        return endpoint.read(Path(order.plan.env[JOB_DIRECTORY]) / ENDPOINT_FILE) is None
    except (OSError, ValueError, LookupError):
        return False


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.backends.kubernetes.warm.keeper")
    parser.add_argument("--preload", default="", metavar="MODULE,…")
    parser.add_argument("--cold", action="store_true", help="preload nothing: it would start threads")
    parser.add_argument("--root", type=Path, default=Path("/"), help="of the container's files")
    parser.add_argument("order", type=PodOrder.from_line)
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.root == Path("/") and IN_A_POD not in environment:
        parser.error("it empties /tmp and /dev/shm, and so runs in pods only")
    os.chdir("/")
    digest = source_digest()
    names = [] if options.cold else [name for name in options.preload.split(",") if name]
    first = [options.order.plan.module, "numpy", "torch"] if names else []
    again = ["-m", __spec__.name, "--cold", "--root", str(options.root), options.order.line()]
    ready_to_fork(first, again, keep=2)
    return Keeper(options.root, [name for name in names if name not in first], digest, environment).run(options.order)


if __name__ == "__main__":
    sys.exit(main())
