"""A gateway's connections to a replica that cannot be reached, does not answer, or is given up. Real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tornado.httputil import HTTPHeaders

from jupyter_hyperpod.serving.line import Broken, Line

LIMIT_S = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A replica that the kernel accepts connections for, and that never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """One that no further connection reaches: packets to it are dropped."""
    with ExitStack() as stack:
        found = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(found.getsockname()))
        found.setblocking(False)
        yield found


def ask(line: Line) -> asyncio.Task[None]:
    async def piece(content: bytes) -> None:
        raise AssertionError(f"nobody has said {content!r}")

    headers = HTTPHeaders({"Host": "replica", "Content-Length": "2"})
    return asyncio.create_task(line.ask("/predict", headers, b"{}", lambda status, headers: None, piece))


async def broken(asked: asyncio.Task[None]) -> Broken:
    with pytest.raises(Broken) as found:
        await asyncio.wait_for(asked, LIMIT_S)
    return found.value


def test_what_waits_for_an_answer_hears_that_the_line_was_cut(listener: socket.socket) -> None:
    async def run() -> None:
        line = Line(*listener.getsockname())
        asked, loop = ask(line), asyncio.get_running_loop()
        connection, _ = await asyncio.wait_for(loop.sock_accept(listener), LIMIT_S)
        with connection:
            assert await asyncio.wait_for(loop.sock_recv(connection, 4), LIMIT_S) == b"POST"
            line.close()
            assert not asked.done(), "an answer may still come"
            line.cut()
            assert (await broken(asked)).sent
        late = await broken(ask(line))
        assert not late.sent and "given up" in str(late)

    asyncio.run(run())


def test_one_that_cannot_be_reached_is_not_waited_for(full: socket.socket) -> None:
    async def run() -> None:
        assert not (await broken(ask(Line(*full.getsockname())))).sent

    asyncio.run(run())


def test_a_line_that_is_closed_while_it_connects_sends_nothing(full: socket.socket) -> None:
    async def run() -> None:
        line = Line(*full.getsockname())
        asked, loop = ask(line), asyncio.get_running_loop()
        with pytest.raises(TimeoutError):  # its first packet is dropped meanwhile
            await asyncio.wait_for(asyncio.shield(asked), 0.2)
        line.close()
        connections = [(await asyncio.wait_for(loop.sock_accept(full), LIMIT_S))[0]]
        assert not (await broken(asked)).sent
        for connection in connections:
            connection.close()

    asyncio.run(run())
