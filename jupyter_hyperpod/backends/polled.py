"""What the runners of all schedulers share: one thread asks the scheduler and carries out orders.

A scheduler that does not answer blocks nothing but that thread. Queries (the elements, the nodes, the ends) are for all
jobs together and at least ``query_every_s`` apart, unless it is known that there is something new (`_hasten`); orders
come between them, in the order in which they were given.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from ..core.backend_options import BIND
from ..core.errors import ClusterError
from ..core.spec import LaunchPlan
from .types import Element, ReportedNode

T = TypeVar("T")
NODES_EVERY_S = 5.0
WANTED_S = 5.0  # without requests for this time, the scheduler is not queried
AGAIN_S, TRIES = 2.0, 300
SOON_S, RESTS = 0.1, 9.0  # a hastened query comes so long after the one before, and so many times as long as it took


class PolledRunner(ABC):
    """The part of `backends.base.Scheduler` that is the same for all. `tick` keeps the thread at work; what it has read
    last is in the attributes."""

    name = ""  # the name in the table of backends
    query_every_s = 1.1

    def __init__(self) -> None:
        self.problem = ""  # why the elements could not be read the last time
        self.fresh_s = 0.0
        self.nodes: dict[str, ReportedNode] = {}
        self.nodes_s = 0.0
        self._elements: Mapping[str, list[Element]] = {}
        self._wanted_s = self._query_s = self._query_nodes_s = 0.0
        self._orders: deque[Callable[[], None]] = deque()
        self._lookups: deque[tuple[Sequence[Element], Future[list[Element]]]] = deque()
        self._hastened, self._soon_s = False, 0.0
        self._wake: Callable[[], None] = lambda: None  # whoever acts on what is learnt
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    # -- what each scheduler does in its own way, on the thread --------------------------------------------------

    @abstractmethod
    def _read_elements(self) -> Mapping[str, list[Element]]:
        """All elements there are, by job. Raises ClusterError."""

    @abstractmethod
    def _read_nodes(self) -> dict[str, ReportedNode]:
        """The nodes, by name. Raises ClusterError."""

    @abstractmethod
    def _read_ends(self, elements: Sequence[Element]) -> Mapping[str, Element]:
        """The results, by name, of elements that are no longer among those that are read."""

    @abstractmethod
    def _is_away(self, error: ClusterError) -> bool:
        """Whether an order failed because the scheduler does not answer, so that it may be tried again."""

    # -- the interface -------------------------------------------------------------------------------------------

    def tick(self, now_s: float = 0.0) -> None:
        """Go on reading for a while."""
        with self._changed:
            self._wanted_s = time.monotonic() + WANTED_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def observe(self, job_id: str, since_s: float = -1.0) -> list[Element] | None:
        return self._elements.get(job_id, []) if self.fresh_s > since_s else None

    def ends(self, elements: Sequence[Element]) -> Future[list[Element]]:
        future: Future[list[Element]] = Future()
        with self._changed:
            self._lookups.append((elements, future))
            self._changed.notify()
        return future

    def expects(self, job_id: str, since_s: float) -> bool:
        return False

    def news(self, job_id: str) -> Sequence[str]:
        return ()

    def keep_nothing(self) -> None:
        return

    def for_head(self, plan: LaunchPlan, options: Mapping[str, str]) -> LaunchPlan:
        try:
            address = options.get(BIND) or socket.gethostbyname(socket.gethostname())
        except OSError as error:
            raise ClusterError(
                f"the name of this machine, {socket.gethostname()}, means no address ({error}); say at which one the "
                f"nodes of the job reach it: --{self.name} {BIND}=ADDRESS"
            ) from error
        if address.startswith("127."):
            given = (
                f"--{self.name} {BIND}" if options.get(BIND) else f"the name of this machine, {socket.gethostname()},"
            )
            raise ClusterError(
                f"{given} means {address}, at which other machines do not reach this one: the nodes of the job cannot "
                f"join it. Say where they reach it: --{self.name} {BIND}=ADDRESS"
            )
        return replace(plan, env={**plan.env, "HYPERPOD_BIND": address})

    def close(self, timeout_s: float = 3.0) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _order(self, act: Callable[[], T], tries: int = 1) -> Future[T]:
        """Have something done by the thread; what must be done is tried again while the scheduler is away."""
        future: Future[T] = Future()

        def carry_out(left: int = tries) -> None:
            try:
                future.set_result(act())
            except ClusterError as error:
                if left <= 1 or self._closing or not self._is_away(error):
                    future.set_exception(error)
                else:
                    again = threading.Timer(AGAIN_S, self._put, [lambda: carry_out(left - 1)])
                    again.daemon = True
                    again.start()
                    return
            self._wake()

        self._put(carry_out)
        return future

    def _hasten(self) -> None:
        """There is something new to read. Any thread may say so."""
        with self._changed:
            self._hastened = True
            self._query_s = min(self._query_s, self._soon_s)
            self._changed.notify()

    def _soon(self) -> None:
        """What is read next need not wait for its turn: somebody waits for it."""
        with self._changed:
            self._soon_s = time.monotonic()

    def _put(self, order: Callable[[], None]) -> None:
        with self._changed:
            self._orders.append(order)
            self._changed.notify()
        self.tick()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (act := self._next()) is None:
                    if self._closing:
                        return
                    now_s = time.monotonic()
                    # whoever wants something notifies
                    self._changed.wait(max(0.01, self._query_s - now_s) if now_s < self._wanted_s else None)
            act()

    def _next(self) -> Callable[[], None] | None:
        """A query where one is due, else an order, else nothing. A query never waits for a long row of orders."""
        now_s = time.monotonic()
        if now_s >= self._query_s and now_s < self._wanted_s and not self._closing:
            self._query_s, self._soon_s = now_s + self.query_every_s, now_s + SOON_S
            if self._hastened and (self._lookups or now_s >= self._query_nodes_s) and self.fresh_s:
                self._query_s = self._soon_s  # what is new is read directly after
            if self._lookups and self.fresh_s:
                return self._look_up
            if now_s >= self._query_nodes_s and self.fresh_s:
                self._query_nodes_s = now_s + NODES_EVERY_S
                return self._note_nodes
            self._hastened = False
            return self._note_elements
        return self._orders.popleft() if self._orders else None

    def _note_elements(self) -> None:
        now_s, before = time.monotonic(), (self._elements, self.problem)
        try:
            self._elements = self._read_elements()
        except ClusterError as error:
            self.problem = str(error)
        else:
            self.fresh_s, self.problem = now_s, ""
        took_s = time.monotonic() - now_s
        with self._changed:
            self._soon_s = now_s + min(SOON_S + RESTS * took_s, self.query_every_s)
            if self._hastened:
                self._query_s = self._soon_s
            # after a slow query the next one would be due at once, and orders would wait for ever
            self._query_s = max(self._query_s, time.monotonic() + min(SOON_S, self.query_every_s))
        if (self._elements, self.problem) != before:
            self._wake()

    def _note_nodes(self) -> None:
        now_s = time.monotonic()
        try:
            self.nodes = self._read_nodes()
        except ClusterError:
            return  # where the elements cannot be read either, that is said
        self.nodes_s = now_s  # last: the nodes are at least as new

    def _look_up(self) -> None:
        """Ask once for all that wait."""
        lookups = [self._lookups.popleft() for _ in range(len(self._lookups))]
        found = self._read_ends([element for elements, _ in lookups for element in elements])
        for elements, future in lookups:
            future.set_result([found[element.name] for element in elements])
