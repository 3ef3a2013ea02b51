"""A request that ends its replicas is found, at the price of few of them, and the others of it are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from jupyter_hyperpod.serving.connection import ReplicaConnections
from jupyter_hyperpod.serving.counters import RequestCounts
from jupyter_hyperpod.serving.pool import PooledReplica, ReplicaPool
from jupyter_hyperpod.serving.relay import ClientRequest, Relay, Unanswered
from tests.serving.conftest import until

LIMIT_S = 50.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Servers:
    """Real servers in a pool; another one takes the place of one that has ended, as in a deployment."""

    def __init__(self, replicas: int) -> None:
        self.pool = ReplicaPool(slots=8, queue=64)
        self.warnings: list[str] = []
        self.relay = Relay(self.pool, RequestCounts(), "key", LIMIT_S, lambda replica: None, self.warnings.append)
        self.deaths: list[list[bytes]] = []  # of each one that has ended: what it was asked
        self.go_on = asyncio.Event()  # "slow" requests are answered from then on
        self.told_to_break = False
        self._wanted, self._begun, self._ends = replicas, 0, list[Callable[[], None]]()

    async def fill(self) -> None:
        while len(self.pool.replicas) < self._wanted:
            await self._begin()
        self.pool.hand_out()

    async def _begin(self) -> None:
        name, asked, writers = f"node-{self._begun}", list[bytes](), set[asyncio.StreamWriter]()
        self._begun += 1

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
                    asked.append(body)
                    if b"poison" in body:
                        await self._die(name, list(asked), end)
                        return
                    if b"slow" in body:
                        await self.go_on.wait()
                    asked.remove(body)
                    writer.write(OK)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)

        def end() -> None:
            server.close()
            for writer in writers:
                writer.transport.abort()

        self._ends.append(end)
        line, link = ReplicaConnections(*server.sockets[0].getsockname()), object()
        made: Any = (name, name, 0, "127.0.0.1", line, link, 0.0, 0.0, "ready")
        self.pool.replicas[name] = PooledReplica(*made)

    async def _die(self, name: str, asked: list[bytes], end: Callable[[], None]) -> None:
        self.deaths.append(asked)
        replica = self.pool.replicas.pop(name)
        replica.told_to_break = self.told_to_break
        end()
        await self.fill()

    async def ask(self, body: bytes) -> int:
        """The status of the answer."""
        try:
            return (await self.relay.answer(ClientRequest("/predict", body, body.decode()))).status
        except Unanswered as error:
            return error.status

    def close(self) -> None:
        for end in self._ends:
            end()
        for replica in self.pool:
            replica.line.cut()


def run(replicas: int, act: Callable[[Servers], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        servers = Servers(replicas)
        await servers.fill()
        try:
            async with asyncio.timeout(LIMIT_S):
                await act(servers)
        finally:
            servers.close()

    asyncio.run(whole())


def test_nobody_is_lost_with_a_request_that_ends_its_replicas() -> None:
    async def act(servers: Servers) -> None:
        innocent = [asyncio.create_task(servers.ask(b"slow %d" % at)) for at in range(8)]
        await until(lambda: servers.pool.outstanding == 8)
        poison = asyncio.create_task(servers.ask(b"poison"))
        await until(lambda: len(servers.deaths) >= 2)
        servers.go_on.set()
        assert await poison == 502
        assert await asyncio.gather(*innocent) == [200] * 8
        count = len(servers.deaths)  # 2 where it happened to be alone at the second one
        assert count in (2, 3) and servers.deaths[-1] == [b"poison"], "at last it was asked nothing else"
        assert max(len(asked) for asked in servers.deaths) > 1
        (warning,) = servers.warnings
        assert warning.startswith(f"request poison, POST /predict: {count} replicas ended or broke off")
        assert await servers.ask(b"poison") == 502 and len(servers.deaths) == count, "a client that asks again"
        assert await servers.ask(b"quick") == 200 and servers.pool.outstanding == 0

    run(2, act)


def test_one_that_is_alone_costs_two() -> None:
    async def act(servers: Servers) -> None:
        assert await servers.ask(b"poison") == 502
        assert len(servers.deaths) == 2
        assert await servers.ask(b"quick") == 200

    run(1, act)


def test_a_replica_that_is_broken_on_purpose_blames_nobody() -> None:
    async def act(servers: Servers) -> None:
        servers.told_to_break = True
        asked = asyncio.create_task(servers.ask(b"poison"))
        await until(lambda: len(servers.deaths) >= 6)
        servers.told_to_break = False
        assert await asked == 502 and len(servers.deaths) >= 8

    run(1, act)


def test_a_replica_is_kept_for_one_request_and_others_go_elsewhere() -> None:
    async def act(servers: Servers) -> None:
        pool = servers.pool
        first, second = await pool.take(), await pool.take()
        alone = asyncio.create_task(pool.take(again=True, alone=True))
        await until(lambda: pool.waiting == 1)
        assert not alone.done() and (first, second) == tuple(pool)
        assert [await pool.take() for _ in range(3)] == [second] * 3, "the first one is kept free"
        pool.give(first)
        assert await alone is first
        assert await pool.take() is second
        left = asyncio.create_task(pool.take(again=True, alone=True))
        await until(lambda: pool.waiting == 1)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        pool.give(first)
        assert await pool.take() is first, "nobody is to be alone any more"

    run(2, act)


def test_who_is_to_be_alone_does_not_wait_for_a_long_answer_where_another_replica_is_idle() -> None:
    async def act(servers: Servers) -> None:
        pool = servers.pool
        first, second = await pool.take(), await pool.take()
        alone = asyncio.create_task(pool.take(again=True, alone=True))
        await until(lambda: pool.waiting == 1)
        pool.give(second)
        assert await asyncio.wait_for(alone, LIMIT_S) is second, "the first one may answer for hours"
        assert await pool.take() is first
        following = asyncio.create_task(pool.take(again=True, alone=True))
        await until(lambda: pool.waiting == 1)
        for _ in range(2):
            pool.give(first)
        assert await pool.take() is first, "who is alone stays so: the next one waits for the same replica"
        pool.give(second)
        assert await following is second

    run(2, act)
