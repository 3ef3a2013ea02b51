"""What a gateway keeps of the bodies that callers without its token send: nothing, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from tornado.httputil import HTTPServerRequest
from tornado.testing import bind_unused_port
from tornado.web import Application

from jupyter_hyperpod.serving import http_server
from jupyter_hyperpod.serving.http_server import GuardedServer, JsonHandler

BOUND_S = 50.0
TOKEN = "Bearer right"
HEAD = "POST /anything HTTP/1.1\r\nHost: x\r\nAuthorization: {}\r\nContent-Length: {}\r\n\r\n"


class Answers(JsonHandler):
    """Says how many bytes of the body it has been given; without the token, refuses, as all routes do."""

    seen: ClassVar[list[HTTPServerRequest]] = []

    def prepare(self) -> None:
        self.seen.append(self.request)
        if self.request.headers.get("Authorization") != TOKEN:
            self.refuse(401, "no token")

    def post(self) -> None:
        self.finish(str(len(self.request.body)))


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    Answers.seen.clear()
    server = GuardedServer(Application([(r".*", Answers)]), knows=lambda header: header == TOKEN)
    listener, port = bind_unused_port()
    server.add_socket(listener)
    yield port
    server.stop()
    await server.close_all_connections()


async def ask(port: int, content: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    await writer.drain()
    found = await asyncio.wait_for(reader.readuntil(b"\r\n"), BOUND_S)
    writer.close()
    return found


async def test_nothing_is_kept_of_a_body_without_the_token() -> None:
    async with serving() as port:
        assert b"401" in await ask(port, HEAD.format("Bearer wrong", 1 << 20).encode() + bytes(1 << 20))
        assert b"200" in await ask(port, HEAD.format(TOKEN, 1 << 20).encode() + bytes(1 << 20))
    assert [len(request.body) for request in Answers.seen] == [0, 1 << 20]


async def test_a_body_without_the_token_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_S", 0.2)
    async with serving() as port:
        slow_reader, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(HEAD.format(TOKEN, 2).encode() + b"x")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.format("Bearer wrong", 2).encode() + b"x")
        assert await asyncio.wait_for(reader.read(), BOUND_S) == b"", "it is hung up on"
        writer.close()
        slow.write(b"y")
        assert b"200" in await asyncio.wait_for(slow_reader.readuntil(b"\r\n"), BOUND_S), "a client may be slow"
        slow.close()
