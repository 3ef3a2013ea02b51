"""Submits, reads, signals and cancels elements of SLURM's job arrays for a supervisor.

One thread runs SLURM's commands, one after another, so that a `slurmctld` without answers blocks nothing else. Queries
(the queue, the nodes, the history) are for all jobs together and at least `QUERY_EVERY_S` apart.
"""

from __future__ import annotations

import getpass
import signal
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from ...core.backend_options import BIND
from ...core.errors import ClusterError
from ...core.spec import LaunchPlan
from ..futures import settled
from ..types import Element, LaunchRequest, ReportedNode
from . import commands, script

T = TypeVar("T")
QUERY_EVERY_S = 1.1
NODES_EVERY_S = 5.0
WANTED_S = 5.0  # without requests for this time, the scheduler is not queried
AGAIN_S, TRIES = 2.0, 300


class SlurmRunner:
    """See `backends.base.Scheduler`. `tick` keeps the thread at work; what it has read last is in the attributes."""

    def __init__(self) -> None:
        self.problem = ""  # why the queue could not be read the last time
        self.fresh_s = 0.0
        self.nodes: dict[str, ReportedNode] = {}  # of all partitions
        self.nodes_s = 0.0
        self._sinfo = ""  # what it printed about the nodes
        self._elements: dict[str, list[Element]] = {}
        self._wanted_s = self._query_s = self._query_nodes_s = 0.0
        self._orders: deque[Callable[[], None]] = deque()
        self._lookups: deque[tuple[Sequence[Element], Future[list[Element]]]] = deque()
        self._accounting = True
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    # -- what is known -----------------------------------------------------------------------------------------

    def tick(self, now_s: float = 0.0) -> None:
        """Go on reading the queue for a while."""
        with self._changed:
            self._wanted_s = time.monotonic() + WANTED_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="slurm", daemon=True)
                self._thread.start()
            self._changed.notify()

    def observe(self, job_id: str, since_s: float = -1.0) -> list[Element] | None:
        return self._elements.get(job_id, []) if self.fresh_s > since_s else None

    def ends(self, elements: Sequence[Element]) -> Future[list[Element]]:
        """What accounting knows of elements that the queue has forgotten; nothing where there is no accounting."""
        future: Future[list[Element]] = Future()
        with self._changed:
            self._lookups.append((elements, future))
            self._changed.notify()
        return future

    def names(self, batch: int, count: int) -> list[str]:
        """What SLURM's commands call the elements of an array."""
        return [f"{batch}_{task}" for task in range(count)]

    def element(self, name: str, state: str, node: str, reason: str, job: str, part: str) -> Element | None:
        return script.named(name, state, node, reason, job, part)

    def held(self, element: Element, requeued: bool) -> str:
        return script.why_held(element, requeued)

    def serving(self, options: Mapping[str, str], part: str) -> set[str]:
        return script.serving(self._sinfo, script.partition(options, part))

    def shares_nodes(self, options: Mapping[str, str]) -> bool:
        """A job that counts cores shares nodes."""
        return "cpus-per-task" in options

    def log(self, name: str) -> str:
        """The log that the script's option --output names."""
        return f"slurm-{name.replace('_', '-')}"

    # -- what is asked for -------------------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan, request: LaunchRequest) -> Future[int]:
        options = script.excluding(request.options, request.avoid)
        command = script.arguments(plan, options, request.part, request.count)
        return self._order(lambda: script.submitted(commands.run(command, script.script(plan, options))))

    def cancel(self, job_id: str, names: Collection[str]) -> Future[None]:
        """End elements, or take them out of the queue."""
        return self._scancel(*names, tries=TRIES) if names else settled(None)

    def release(self, job_id: str) -> Future[None]:
        return self._scancel(f"--user={getpass.getuser()}", f"--name={job_id}", tries=TRIES)

    def release_command(self, job_id: str) -> str:
        return f"scancel --name={job_id}"

    def signal(self, job_id: str, name: str, number: int) -> Future[None]:
        """Send a signal to an element's processes; SIGKILL comes at once, without any grace."""
        # a controller that went on from its saved state may not know the step, which the node's slurmd does; but what
        # ends or stops an element as a whole also changes its state
        target = name if number == signal.SIGUSR1 else f"{name}.{script.STEP}"
        return self._scancel(f"--signal={signal.Signals(number).name.removeprefix('SIG')}", target)

    def for_head(self, plan: LaunchPlan, options: Mapping[str, str]) -> LaunchPlan:
        address = options.get(BIND) or socket.gethostbyname(socket.gethostname())
        if address.startswith("127."):
            raise ClusterError(
                f"{socket.gethostname()} means {address} here, which compute nodes cannot reach; "
                f"say where they can: --slurm {BIND}=ADDRESS"
            )
        return replace(plan, env={**plan.env, "HYPERPOD_BIND": address})

    def close(self, timeout_s: float = 3.0) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _scancel(self, *words: str, tries: int = 1) -> Future[None]:
        def act() -> None:
            commands.run(["scancel", "--quiet", *words])

        return self._order(act, tries)

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
            if now_s >= self._query_nodes_s and self.fresh_s:
                self._query_nodes_s = now_s + NODES_EVERY_S
                return self._read_nodes
            return self._read_queue
        return self._orders.popleft() if self._orders else None

    def _read_queue(self) -> None:
        now_s = time.monotonic()
        try:
            text = commands.run(commands.QUEUE)
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
            self._sinfo = commands.run(commands.NODES)
        except ClusterError:
            return  # the queue cannot be read either, which says so
        states, draining = script.node_states(self._sinfo), script.draining(self._sinfo)
        self.nodes = {name: ReportedNode(name, state, draining.get(name, "")) for name, (state, _) in states.items()}
        self.nodes_s = now_s  # last: the nodes are at least as new

    def _look_up(self) -> None:
        """Ask accounting once for all that wait."""
        lookups = [self._lookups.popleft() for _ in range(len(self._lookups))]
        found: script.History = {}
        if self._accounting:
            arrays = sorted({str(element.batch) for elements, _ in lookups for element in elements})
            try:
                found = script.history(commands.run([*commands.HISTORY, f"--jobs={','.join(arrays)}"]))
            except ClusterError as error:
                self._accounting = script.NO_ACCOUNTING not in str(error)
        for elements, future in lookups:
            future.set_result([script.ended(element, found) for element in elements])
