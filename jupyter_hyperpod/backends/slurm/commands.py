"""Runs SLURM's commands in one thread, one after another, so that a `slurmctld` without answers blocks nothing else.

Queries (the queue, the nodes, the history) are for all jobs together and at least `QUERY_EVERY_S` apart.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from ...core.errors import ClusterError
from ...core.spec import LaunchPlan
from ..types import Element
from . import script

T = TypeVar("T")
QUERY_EVERY_S = 1.1
NODES_EVERY_S = 5.0
WANTED_S = 5.0  # without requests for this time, the scheduler is not queried
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "TZ", "SLURM_CONF")
COMMAND_TIMEOUT_S = 30.0
AGAIN_S, TRIES = 2.0, 300
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
History = dict[str, tuple[str, str, str]]
_QUEUE = ["squeue", "--noheader", "--array", "--me", "--states=all", f"--format={script.QUEUE_FORMAT}"]
_NODES = ["sinfo", "--noheader", "--Node", f"--format={script.NODES_FORMAT}"]
_HISTORY = ["sacct", "--noheader", "--allocations", "--parsable2", f"--format={script.HISTORY_FORMAT}"]


class Slurm:
    """The scheduler. `tick` keeps its thread at work; what it has read last is in the other members."""

    def __init__(self) -> None:
        self.problem = ""  # why the queue could not be read the last time
        self.fresh_s = 0.0  # when the queue that is known was asked for (`time.monotonic`)
        self.draining: dict[str, str] = {}  # node -> why it gets nothing new
        self.draining_s = 0.0  # when that was asked for (`time.monotonic`)
        self._nodes = ""
        self._elements: dict[str, list[Element]] = {}
        self._wanted_s = self._query_s = self._nodes_s = 0.0
        self._orders: deque[Callable[[], None]] = deque()
        self._lookups: deque[tuple[list[int], Future[History]]] = deque()
        self._accounting = True
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    # -- what is known -----------------------------------------------------------------------------------------

    def elements(self, job: str, since_s: float) -> list[Element] | None:
        """A job's elements; None where the queue has not been read since then (`time.monotonic`)."""
        return self._elements.get(job, []) if self.fresh_s > since_s else None

    def node_states(self) -> dict[str, tuple[str, str]]:
        """Node -> (state, why), as far as is known."""
        return script.node_states(self._nodes)

    def serving(self, partitions: str = "") -> set[str]:
        """Nodes that get work, of partitions or of the default one, as far as is known."""
        return script.serving(self._nodes, partitions)

    def tick(self) -> None:
        """Go on reading the queue for a while."""
        with self._changed:
            self._wanted_s = time.monotonic() + WANTED_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="slurm", daemon=True)
                self._thread.start()
            self._changed.notify()

    # -- what is asked for -------------------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, options: Mapping[str, str], part: str, count: int) -> Future[int]:
        """Submit ``count`` elements of a part; the array's number, or ClusterError."""
        command = script.arguments(plan, options, part, count)
        return self._order(lambda: script.submitted(_run(command, script.script(plan, options))))

    def cancel(self, names: Iterable[str]) -> Future[str]:
        """End elements; those that have ended are no error."""
        return self._order(lambda: _run(["scancel", "--quiet", *names]), TRIES)

    def cancel_job(self, job: str) -> Future[str]:
        """End every element of a job, also those that were submitted and never recorded."""
        return self._order(lambda: _run(["scancel", "--quiet", f"--user={getpass.getuser()}", f"--name={job}"]), TRIES)

    def signal(self, name: str, signal: str) -> Future[str]:
        """Send a signal ("USR1") to an element's processes; KILL comes at once, without any grace."""
        # a controller that went on from its saved state may not know the step, which the node's slurmd does; but what
        # ends or stops an element as a whole also changes its state
        target = name if signal == "USR1" else f"{name}.{script.STEP}"
        return self._order(lambda: _run(["scancel", "--quiet", f"--signal={signal}", target]))

    def history(self, arrays: Iterable[int]) -> Future[History]:
        """What accounting knows of arrays that the queue has forgotten; nothing where there is no accounting."""
        future: Future[History] = Future()
        with self._changed:
            self._lookups.append((sorted(arrays), future))
            self._changed.notify()
        return future

    def close(self, timeout_s: float) -> None:
        """Carry out pending requests for a limited time, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _order(self, act: Callable[[], T], tries: int = 1) -> Future[T]:
        """Have something done by the thread; what must be done is tried again while the controller is away."""
        future: Future[T] = Future()

        def carry_out(left: int = tries) -> None:
            try:
                future.set_result(act())
            except ClusterError as error:
                if left <= 1 or self._closing or not script.away(str(error)):
                    future.set_exception(error)
                else:
                    again = threading.Timer(AGAIN_S, self._put, [lambda: carry_out(left - 1)])
                    again.daemon = True
                    again.start()

        self._put(carry_out)
        return future

    def _put(self, order: Callable[[], None]) -> None:
        with self._changed:
            self._orders.append(order)
            self._changed.notify()
        self.tick()

    # -- the thread --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (act := self._next()) is None:
                    if self._closing:
                        return
                    self._changed.wait(max(0.01, self._query_s - time.monotonic()))
            act()

    def _next(self) -> Callable[[], None] | None:
        """A query where one is due, else an order, else nothing. A query never waits for a long row of orders."""
        now_s = time.monotonic()
        if now_s >= self._query_s and now_s < self._wanted_s and not self._closing:
            self._query_s = now_s + QUERY_EVERY_S
            if self._lookups and self.fresh_s:
                return self._look_up
            if now_s >= self._nodes_s and self.fresh_s:
                self._nodes_s = now_s + NODES_EVERY_S
                return self._read_nodes
            return self._read_queue
        return self._orders.popleft() if self._orders else None

    def _read_queue(self) -> None:
        now_s = time.monotonic()
        try:
            text = _run(_QUEUE)
        except ClusterError as error:
            self.problem = str(error)
            return
        found: dict[str, list[Element]] = defaultdict(list)
        for element in script.queue(text):
            found[element.job].append(element)
        self._elements, self.fresh_s, self.problem = dict(found), now_s, ""

    def _read_nodes(self) -> None:
        now_s = time.monotonic()
        try:
            self._nodes = _run(_NODES)
        except ClusterError:
            return  # the queue cannot be read either, which says so
        self.draining, self.draining_s = script.draining(self._nodes), now_s

    def _look_up(self) -> None:
        """Ask accounting once for all that wait."""
        lookups = [self._lookups.popleft() for _ in range(len(self._lookups))]
        found: History = {}
        if self._accounting:
            arrays = sorted({str(array) for wanted, _ in lookups for array in wanted})
            try:
                found = script.history(_run([*_HISTORY, f"--jobs={','.join(arrays)}"]))
            except ClusterError as error:
                self._accounting = script.NO_ACCOUNTING not in str(error)
        for _, future in lookups:
            future.set_result(found)


def node_states(partition: str = "") -> dict[str, tuple[str, str]]:
    """Node -> (state, why), of a partition or of all. Raises ClusterError."""
    return script.node_states(_run([*_NODES, *([f"--partition={partition}"] if partition else [])]))


def missing() -> str:
    """What this machine lacks to be where jobs are submitted to SLURM, as a sentence; "" where nothing does."""
    lacking = [command for command in COMMANDS if shutil.which(command) is None]
    if not lacking:
        return ""
    commands = ", ".join(f"`{command}`" for command in lacking)
    return (
        f"{commands} not found in PATH ({os.environ.get('PATH', '')}): the backend slurm is used on a login node of "
        "the cluster, where SLURM's commands are (try `module load slurm`); --backend local needs none"
    )


def _run(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=_environment(os.environ)
        )
    except FileNotFoundError as error:
        raise ClusterError(missing() or f"`{command[0]}` was not found in PATH") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`{command[0]}` cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ClusterError(f"`{command[0]}` refused: {said[:500]}")
    return done.stdout


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The little of it that SLURM's commands need, and that jobs then get: no secrets, no options for SLURM."""
    return {name: environment[name] for name in PASSED_ON if name in environment} | {"LC_ALL": "C.UTF-8"}
