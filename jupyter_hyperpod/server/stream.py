"""The websocket: a client sends its position in a journal, the server sends the later events in order.

A message is built from the reader's position, and only after the previous one has been sent. So a slow client costs the
server one message, no matter how far behind it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from ..core.errors import HyperpodError
from .errors import JsonErrors
from .services import CLUSTER, JOBS, Services
from .tailer import AnyReader
from .topic import dumps

MAX_TOPICS = 1000
# lets one message carry all events of one training step
GATHER_S = 0.02
SIGN_IN_AGAIN = 4000  # a code of our own; src/api.ts knows it
# little work per message, and 150 KB of memory per client
COMPRESSION = {"compression_level": 1, "mem_level": 5}
Result = TypeVar("Result")


class StreamHandler(JsonErrors, JupyterHandler, WebSocketHandler):
    """One client: its readers, and the task that sends. Tornado calls the public methods; it checks the origin."""

    auth_resource = JOBS

    def initialize(self, services: Services) -> None:
        self.services = services
        self._readers: dict[str, AnyReader] = {}
        self._news = asyncio.Event()
        self._problems: list[str] = []
        self._sender: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse unauthenticated clients with 403, as a websocket cannot show a login page."""
        await super().prepare(_redirect_to_login=False)

    @ws_authenticated
    @authorized(action="read")
    async def get(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        await super().get(*args, **kwargs)

    @property
    def ping_interval(self) -> float | None:
        return self.services.heartbeat_s or None

    @property
    def ping_timeout(self) -> float | None:
        return self.services.heartbeat_s or None

    @property
    def max_message_size(self) -> int:
        """Bytes a client may send in one message; more closes the socket."""
        return self.services.max_message_bytes

    def get_compression_options(self) -> dict[str, Any]:
        """Compress messages: names and numbers of one step resemble those of the last."""
        return COMPRESSION

    def open(self, *_: str) -> None:
        self.services.begin()
        self.services.sockets.add(self)
        self._loop = asyncio.get_running_loop()
        self._sender = asyncio.create_task(self._send())
        if self.services.socket_lifetime_s:
            reason = "the client connects again, so that its rights are checked again"
            self._end = self._loop.call_later(self.services.socket_lifetime_s, self.close, SIGN_IN_AGAIN, reason)

    def on_close(self) -> None:
        """Stop sending and release every topic."""
        self.services.sockets.discard(self)
        if self._end is not None:
            self._end.cancel()
        if self._sender is not None:
            self._sender.cancel()
        for topic in list(self._readers):
            self._leave(topic)
        self.services.garbage.thorough(quiet=not self.services.sockets)

    async def on_message(self, message: str | bytes) -> None:
        """Handle a client's message; the next one is read only afterwards."""
        try:
            asked = await self._away(self._understood, message)
        except (ValueError, RecursionError):
            return self._complain("the message is not JSON")
        except HyperpodError as error:
            return self._complain(str(error))
        if asked["type"] == "unsubscribe":
            for topic in asked["topics"]:
                self._leave(topic)
            return
        for topic in dict.fromkeys(asked["watch"]):
            await self._watch(topic, asked.get("cursors", {}).get(topic))

    def _understood(self, message: str | bytes) -> dict[str, Any]:
        asked: dict[str, Any] = self.services.contract.check_message(json.loads(message))
        return asked

    async def _watch(self, topic: str, cursor: dict[str, int] | None) -> None:
        self._leave(topic)
        if len(self._readers) >= MAX_TOPICS:
            return self._complain(f"{MAX_TOPICS} topics are watched already; unsubscribe from some", topic)
        resource = CLUSTER if topic == "cluster" else JOBS
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, "read", resource)):
            return self._complain(f"you are not authorized to read {resource}", topic)
        try:
            reader = await self._away(self.services.tailer.watch, topic, cursor, self._wake)
        except (HyperpodError, OSError) as error:
            return self._complain(str(error), topic)
        self._readers[topic] = reader
        if self.ws_connection is None:
            return self._leave(topic)
        self._news.set()

    def _leave(self, topic: str) -> None:
        reader = self._readers.pop(topic, None)
        if reader is not None:
            self.services.tailer.unwatch(topic, self._wake)
            self.services.close_later(reader)

    def _complain(self, text: str, topic: str | None = None) -> None:
        """Send a problem; only the newest few are kept for a client that does not read."""
        self._problems.append(dumps({"type": "problem", "text": text} | ({"topic": topic} if topic else {})))
        del self._problems[:-MAX_TOPICS]
        self._news.set()

    def _wake(self) -> None:
        """Called by the tailer's thread."""
        with suppress(RuntimeError):  # the loop has just been closed: the server is ending
            self._loop.call_soon_threadsafe(self._news.set)

    async def _away(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.services.streams, function, *arguments)

    async def _send(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while await self._send_one_each():
                    pass
                await asyncio.sleep(GATHER_S)
        except (WebSocketClosedError, StreamClosedError):
            pass  # on_close tidies up
        except Exception:
            self.log.exception("a websocket is closed because its topics cannot be read")
            self.close(1011, "the server cannot read this topic; its log has the reason")

    async def _send_one_each(self) -> bool:
        """Send pending messages, one per topic in turn, so that a long topic does not delay the others."""
        waiting, self._problems = self._problems, []
        for text in waiting:
            await self.write_message(text)
        for topic, reader in list(self._readers.items()):
            if reader.pending:
                messages = reader.take_ready()
                if messages is None:
                    messages = await self._away(reader.take)
                for text in messages:
                    if self._readers.get(topic) is reader:
                        await self.write_message(text)
        return any(reader.pending for reader in self._readers.values())
