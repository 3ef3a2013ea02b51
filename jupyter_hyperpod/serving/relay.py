"""Passes a request to a replica and its answer back, and retries with another replica where one dies.

An answer is a function of the request and its id, so a request may be sent again at any time before its answer is
complete. If a replica dies during a stream, another one computes the answer again; the part that the client already has
is compared and left out. Of an engine nobody knows whether another one would say the same, so a stream of it that was
begun ends with an error.

Many requests are in progress when a replica dies, and one of them may be the cause. All are sent again. Those that have
lost two replicas get one for themselves: whoever loses that is the cause, and takes no further one with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tornado.httputil import HTTPHeaders

from .connection import ReplicaBroken
from .context import AUTHORIZATION, CREATED, FROM_ENGINE, REQUEST_ID, STREAM
from .counters import RequestCounts
from .pool import PooledReplica, QueueFull, ReplicaPool

SUSPECT = 2  # a request that was in progress when this many replicas died may be the cause: it is answered alone
BREAKS = 5  # no request costs more replicas than this
BLAMED_S = 60.0  # for how long a request that was the cause is refused: clients repeat what got no answer
PAUSE_S = 0.05
KEPT, KEPT_S, KEPT_BYTES = 1024, 60.0, 1 << 20
JSON = "application/json"
CUT = (
    "the stream was cut: the replica that answered was lost, and another one might continue it differently. What "
    "has come is the beginning of the answer only; ask again"
)
REFUSED = (
    "{count} replicas ended or broke off while they answered the same request shortly before, so it is sent to none; "
    "it may be asked again in {seconds:.0f} s"
)


class Unanswered(Exception):
    """No replica could answer; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class ClientRequest:
    """A client's request; ``stream`` gets the pieces of a streamed answer.

    ``repeatable``: every replica gives the same answer, so that another one may continue a stream.
    """

    path: str
    body: bytes
    request_id: str
    created: int = field(default_factory=lambda: int(time.time()))
    stream: Callable[[bytes], Awaitable[None]] | None = None
    repeatable: bool = True
    method: str = "POST"

    def headers(self, key: str) -> HTTPHeaders:
        fields = {AUTHORIZATION: key, REQUEST_ID: self.request_id, CREATED: str(self.created)}
        length = str(len(self.body))
        return HTTPHeaders({**fields, "Content-Type": "application/json", "Content-Length": length, "Host": "replica"})

    @property
    def identity(self) -> tuple[str, bytes]:
        """An identity that is equal for a repeated request."""
        return self.request_id, hashlib.sha256(self.path.encode() + b"\0" + self.body).digest()


@dataclass(slots=True)
class ReplicaResponse:
    """``body`` is empty where the answer was streamed."""

    status: int = 0
    body: bytes = b""
    streamed: bool = False
    content_type: str = JSON


class _Incoming:
    """An arriving answer: kept until it is complete, or passed on if it is a stream."""

    def __init__(self, request: ClientRequest, passed: _Passed) -> None:
        self.status = 0
        self.streamed = False
        self.of_engine = False
        self.alone = False  # the replica broke off, and was answering nothing else
        self.content_type = JSON
        self.body = bytearray()
        self._request, self._passed = request, passed
        self._skip, self._skipped = passed.length, hashlib.sha256()

    def head(self, status: int, headers: HTTPHeaders) -> None:
        self.status = status
        self.content_type = headers.get("Content-Type", JSON)
        self.of_engine = FROM_ENGINE in headers
        self.streamed = self.content_type.startswith(STREAM) and status == 200 and self._request.stream is not None

    async def piece(self, content: bytes) -> None:
        """A piece has arrived. Raises Unanswered where it differs from the part that the client already has."""
        if not self.streamed:
            self.body += content
            return
        again, content = content[: self._skip], content[self._skip :]
        self._skip -= len(again)
        self._skipped.update(again)
        if again and not self._skip and self._skipped.digest() != self._passed.digest.digest():
            raise Unanswered(502, "the answer that was begun could not be continued by another replica")
        if content and self._request.stream is not None:
            self._passed.length += len(content)
            self._passed.digest.update(content)
            await self._request.stream(content)


class _Passed:
    """The part of a stream that the client has received."""

    def __init__(self) -> None:
        self.length = 0
        self.digest = hashlib.sha256()


@dataclass(slots=True)
class _Known:
    """A request in progress or answered shortly before, and the number of clients that wait for it."""

    task: asyncio.Task[ReplicaResponse]
    waiting: int = 0
    since_s: float = field(default_factory=time.monotonic)


class Relay:
    """Sends requests to replicas; ``key`` authenticates the gateway.

    ``answered`` is called with the replica, ``warn`` with a sentence where a request ends replicas.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        ledger: RequestCounts,
        key: str,
        timeout_s: float,
        answered: Callable[[PooledReplica], None],
        warn: Callable[[str], None],
    ) -> None:
        self._pool, self._ledger, self._key, self._timeout_s = pool, ledger, key, timeout_s
        self._answered, self._warn = answered, warn
        self._blamed: dict[bytes, tuple[float, int]] = {}  # what was the cause: until when, and how many replicas
        self._known: OrderedDict[tuple[str, bytes], _Known] = OrderedDict()

    async def answer(self, request: ClientRequest) -> ReplicaResponse:
        """Return the answer. A request repeated meanwhile, or within a minute, is computed only once.

        Raises Unanswered, or QueueFull where too many wait.
        """
        if request.stream is not None:
            return await self._counted(request)
        self._forget_old()
        known = self._known.get(request.identity)
        if known is None:
            known = self._known[request.identity] = _Known(asyncio.create_task(self._counted(request)))
            known.task.add_done_callback(lambda done: self._settle(request.identity, done))
        known.waiting += 1
        try:
            return await asyncio.shield(known.task)
        finally:
            known.waiting -= 1
            if not known.waiting and not known.task.done():
                known.task.cancel()

    def _settle(self, identity: tuple[str, bytes], task: asyncio.Task[ReplicaResponse]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed or task.result().status != 200 or len(task.result().body) > KEPT_BYTES:
            self._known.pop(identity, None)

    def _forget_old(self) -> None:
        since_s = time.monotonic() - KEPT_S
        while self._known:
            identity, known = next(iter(self._known.items()))
            if not known.task.done() or (known.since_s > since_s and len(self._known) <= KEPT):
                return
            del self._known[identity]

    async def probe(self, replica: PooledReplica, request: ClientRequest) -> None:
        """Send one replica a test request; its connection breaks if it does not answer."""
        incoming = _Incoming(request, _Passed())
        replica.outstanding += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(replica, request, incoming)
        except (ReplicaBroken, TimeoutError):
            return
        if incoming.status == 200:
            self._answered(replica)

    async def _counted(self, request: ClientRequest) -> ReplicaResponse:
        began_s = time.monotonic()
        self._ledger.accepted += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._persist(request)
        except QueueFull:
            self._ledger.accepted -= 1
            self._ledger.refused += 1
            raise
        except TimeoutError:
            self._ledger.failed += 1
            raise Unanswered(504, f"no answer within {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            self._ledger.left += 1
            raise
        except Unanswered:
            self._ledger.failed += 1
            raise
        self._ledger.took(time.monotonic() - began_s)
        return answer

    async def _persist(self, request: ClientRequest) -> ReplicaResponse:
        """Send the request until it is answered."""
        avoid: set[str] = set()
        passed, lost = _Passed(), list[str]()
        while True:
            self._refuse_blamed(request)
            replica = await self._pool.take(avoid, again=bool(avoid), alone=len(lost) >= SUSPECT)
            incoming, whole = _Incoming(request, passed), False
            try:
                await self._send(replica, request, incoming)
                whole = True
            except ReplicaBroken as error:
                if error.sent and not replica.leaves:
                    lost.append(replica.name)
                if passed.length and not request.repeatable:
                    raise Unanswered(502, CUT) from error
                if len(lost) >= SUSPECT and incoming.alone:
                    raise self._blame(request, lost) from error
                if len(lost) >= BREAKS:
                    raise Unanswered(502, f"{len(lost)} replicas were lost while they answered: {error}") from error
            if whole and (incoming.status != 503 or incoming.of_engine):
                self._answered(replica)
                replica.broken = 0
                return ReplicaResponse(incoming.status, bytes(incoming.body), incoming.streamed, incoming.content_type)
            self._ledger.retried += 1
            await asyncio.sleep(PAUSE_S if whole or replica.name in avoid else 0)
            avoid.add(replica.name)

    async def _send(self, replica: PooledReplica, request: ClientRequest, incoming: _Incoming) -> None:
        """Send a request to a replica whose slot it has, and give the slot back. Raises ReplicaBroken."""
        try:
            headers = request.headers(self._key)
            await replica.line.ask(request.path, headers, request.body, incoming.head, incoming.piece, request.method)
        except ReplicaBroken as error:
            incoming.alone = replica.outstanding == 1 and not replica.broken
            replica.broken += error.sent
            raise
        finally:
            self._pool.give(replica)

    def _blame(self, request: ClientRequest, lost: list[str]) -> Unanswered:
        """A request has ended replicas: what its client is told."""
        now_s = time.monotonic()
        self._blamed = {body: known for body, known in self._blamed.items() if known[0] > now_s}
        self._blamed[request.identity[1]] = now_s + BLAMED_S, len(lost)
        text = (
            f"{len(lost)} replicas ended or broke off while they answered this request, the last one while it answered "
            f"nothing else ({', '.join(lost)}). It is not sent to another one, and the same request is refused for the "
            f"next {BLAMED_S:.0f} s; the log of the deployment says how they ended"
        )
        self._warn(f"request {request.request_id}, {request.method} {request.path}: {text}")
        return Unanswered(502, text)

    def _refuse_blamed(self, request: ClientRequest) -> None:
        if not self._blamed:
            return
        until_s, count = self._blamed.get(request.identity[1], (0.0, 0))
        if (left_s := until_s - time.monotonic()) > 0:
            raise Unanswered(502, REFUSED.format(count=count, seconds=left_s))
