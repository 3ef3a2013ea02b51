"""A gateway's connections to a replica that cannot be reached, does not answer, or is given up. Real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tornado.httputil import HTTPHeaders

from jupyter_hyperpod.serving.connection import ReplicaBroken, ReplicaConnections

LIMIT_S = 50.0


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


def ask(line: ReplicaConnections) -> asyncio.Task[None]:
    async def piece(content: bytes) -> None:
        raise AssertionError(f"nobody has said {content!r}")

    headers = HTTPHeaders({"Host": "replica", "Content-Length": "2"})
    return asyncio.create_task(line.ask("/predict", headers, b"{}", lambda status, headers: None, piece))


async def broken(asked: asyncio.Task[None]) -> ReplicaBroken:
    with pytest.raises(ReplicaBroken) as found:
        await asyncio.wait_for(asked, LIMIT_S)
    return found.value


def test_what_waits_for_an_answer_hears_that_the_line_was_cut(listener: socket.socket) -> None:
    async def run() -> None:
        line = ReplicaConnections(*listener.getsockname())
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
        assert not (await broken(ask(ReplicaConnections(*full.getsockname())))).sent

    asyncio.run(run())


def test_a_line_that_is_closed_while_it_connects_sends_nothing(full: socket.socket) -> None:
    async def run() -> None:
        line = ReplicaConnections(*full.getsockname())
        asked, loop = ask(line), asyncio.get_running_loop()
        with pytest.raises(TimeoutError):  # its first packet is dropped meanwhile
            await asyncio.wait_for(asyncio.shield(asked), 0.2)
        line.close()
        connections = [(await asyncio.wait_for(loop.sock_accept(full), LIMIT_S))[0]]
        assert not (await broken(asked)).sent
        for connection in connections:
            connection.close()

    asyncio.run(run())


async def respond(connection: socket.socket) -> None:
    """What a replica says to a request."""
    loop = asyncio.get_running_loop()
    assert await asyncio.wait_for(loop.sock_recv(connection, 4096), LIMIT_S)
    await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def accept(listener: socket.socket) -> socket.socket:
    connection, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), LIMIT_S)
    return connection


async def answer(line: ReplicaConnections) -> int:
    found: list[int] = []

    async def piece(content: bytes) -> None:
        assert content == b"{}"

    headers = HTTPHeaders({"Host": "replica", "Content-Length": "2"})
    await asyncio.wait_for(line.ask("/predict", headers, b"{}", lambda status, _: found.append(status), piece), LIMIT_S)
    return found[0]


def test_connections_that_the_replica_has_closed_since_are_not_taken_for_its_loss(listener: socket.socket) -> None:
    async def run() -> None:
        line = ReplicaConnections(*listener.getsockname())
        asked = [asyncio.create_task(answer(line)) for _ in range(5)]
        with ExitStack() as stack:
            connections = [stack.enter_context(await accept(listener)) for _ in asked]
            for connection in connections:
                await respond(connection)
            assert await asyncio.gather(*asked) == [200] * 5
        late = asyncio.create_task(answer(line))
        with await accept(listener) as connection:
            await respond(connection)
            assert await late == 200
            assert len(line._idle) == 1, "the older ones were given up with the first that failed"
        line.cut()

    asyncio.run(run())


def test_a_replica_that_dies_of_a_request_on_a_kept_connection_counts_as_lost_while_it_answered(
    listener: socket.socket,
) -> None:
    async def run() -> None:
        line = ReplicaConnections(*listener.getsockname())
        asked = asyncio.create_task(answer(line))
        with await accept(listener) as connection:
            await respond(connection)
            assert await asked == 200
            asked = asyncio.create_task(answer(line))
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 4096), LIMIT_S)
            listener.close()
        with pytest.raises(ReplicaBroken) as found:
            await asked
        assert found.value.sent, "whoever is sent it again and again would die of it again and again"

    asyncio.run(run())
