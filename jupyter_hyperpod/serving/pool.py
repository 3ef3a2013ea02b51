"""The gateway's pool of replicas, and the queue of requests that wait for one."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tornado.websocket import WebSocketClosedError, WebSocketHandler

from ..policy.serving import choose
from ..system.processes import Activity
from .connection import ReplicaConnections
from .context import HOST


@dataclass
class PooledReplica:
    """One replica. ``departing``: its node goes out of service, so it goes when others are ready; until then it answers
    where no other has a free slot. ``retired``: it gets no further request. ``ending``: it has been told to end.
    ``broken``: how many requests it has left without an answer. ``told_to_break``: somebody breaks it on purpose.
    """

    name: str
    node: str
    pid: int
    host: str
    line: ReplicaConnections
    link: WebSocketHandler
    decided_s: float
    started_s: float
    state: str = "loading"
    path: str = ""
    model: str = ""  # which one it has loaded (`model_identity`); "" where that is not known
    progress: tuple[int, int] = (0, 0)  # bytes loaded, bytes in all
    outstanding: int = 0
    retired: bool = False
    departing: bool = False
    ending: bool = False
    broken: int = 0
    told_to_break: bool = False
    heard_s: float = field(default_factory=time.monotonic)  # corrected if this process stood still
    told_s: float = field(default_factory=time.monotonic)  # never corrected: losses are timed by it
    error: dict[str, Any] | None = None
    activity: Activity | None = None  # its state when its silence began
    load: dict[str, float] = field(default_factory=dict)  # what its engine says of its requests
    machine: str = ""  # the name of its host

    @property
    def leaves(self) -> bool:
        """Whether its end has a known cause, so that it was no request's."""
        return self.retired or self.departing or self.told_to_break

    @property
    def here(self) -> bool:
        """Whether it runs on this host, so that its process can be observed and ended."""
        return self.host == HOST

    def say(self, kind: str, **more: int) -> None:
        """Send the replica a message; ignored if it has gone."""
        with suppress(WebSocketClosedError):
            self.link.write_message(json.dumps({"type": kind} | more))


class QueueFull(Exception):
    """Too many requests wait."""


class ReplicaPool:
    """Hands replicas to requests: the one with the fewest outstanding, in the order of the requests.

    A request may also get a replica for itself: then one replica takes no other requests until it is idle.
    """

    def __init__(self, slots: int, queue: int) -> None:
        self.replicas: dict[str, PooledReplica] = {}
        self._slots, self._queue = slots, queue
        self._waiting: deque[tuple[asyncio.Future[PooledReplica], Collection[str]]] = deque()
        self._alone: deque[asyncio.Future[PooledReplica]] = deque()
        self._kept: PooledReplica | None = None  # for those that get it for themselves, one after the other
        self._taken = False  # one of those has it

    def __iter__(self) -> Iterator[PooledReplica]:
        return iter(self.replicas.values())

    @property
    def waiting(self) -> int:
        """Requests without a replica."""
        return self._queued() + sum(not future.done() for future in self._alone)

    def _queued(self) -> int:
        return sum(not future.done() for future, _ in self._waiting)

    @property
    def outstanding(self) -> int:
        """Requests that wait or are being answered."""
        return self.waiting + sum(replica.outstanding for replica in self)

    def ready(self) -> list[PooledReplica]:
        """Replicas that may get a request."""
        return [replica for replica in self if replica.state == "ready" and not replica.retired]

    async def take(self, avoid: Collection[str] = (), again: bool = False, alone: bool = False) -> PooledReplica:
        """Wait for a replica with a free slot and take the slot; give it back with `give`.

        One to ``avoid`` is used only where no other has a free slot. A request that is sent ``again`` comes first and
        is never refused; one that is to be ``alone`` shares its replica with no other. Raises QueueFull.
        """
        if not alone and (again or not self._queued()) and (replica := self._occupy(avoid)) is not None:
            return replica
        if not again and self.waiting >= self._queue:
            raise QueueFull
        future: asyncio.Future[PooledReplica] = asyncio.get_running_loop().create_future()
        if alone:
            self._alone.append(future)
            self.hand_out()
        else:
            (self._waiting.appendleft if again else self._waiting.append)((future, avoid))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(future.result())
            raise

    def give(self, replica: PooledReplica) -> None:
        """Give a slot back."""
        replica.outstanding -= 1
        self.hand_out()

    def hand_out(self) -> None:
        """Give free slots to waiting requests, oldest first."""
        self._isolate()
        while self._waiting:
            future, avoid = self._waiting[0]
            if not future.done():
                if (replica := self._occupy(avoid)) is None:
                    return
                future.set_result(replica)
            self._waiting.popleft()

    def _isolate(self) -> None:
        """Keep a replica free of others where a request is to be alone, and give it to that one when it is idle."""
        while self._alone and self._alone[0].done():
            self._alone.popleft()
        kept, ready = self._kept, self.ready()
        if kept is None or not kept.outstanding or not any(replica is kept for replica in ready):
            self._taken = False
        # until one has it for itself, another may be idle sooner than the one kept, which may answer for long
        idle = [replica for replica in ready if not (self._taken or replica.outstanding or replica.departing)]
        if self._alone and (idle or not any(replica is kept for replica in ready)):
            kept = min(idle or ready, key=lambda replica: (replica.departing, replica.outstanding), default=None)
        elif kept is not None and not kept.outstanding and not self._alone:
            kept = None
        self._kept = kept
        if self._alone and kept is not None and not kept.outstanding:
            kept.outstanding += 1
            self._taken = True
            self._alone.popleft().set_result(kept)

    def _occupy(self, avoid: Collection[str]) -> PooledReplica | None:
        """Take a free slot; None where there is none."""
        ready = [replica for replica in self.ready() if replica is not self._kept]
        last = {*avoid, *(replica.name for replica in ready if replica.departing)}
        name = choose({replica.name: replica.outstanding for replica in ready}, self._slots, last)
        if name is None:
            return None
        self.replicas[name].outstanding += 1
        return self.replicas[name]
