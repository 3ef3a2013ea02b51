"""Browsers without a screen: each opens what a browser with the panel and one job's card opens, and counts.

``python -m benchmarks.control.panels URL CLIENTS FOLLOWED CARD …``: a panel follows the cluster, the list of jobs
and the first ``FOLLOWED`` unfinished jobs of the list; client number i follows the i-th ``CARD``, a job, in turn. A
line on standard input begins a new measurement and answers with the last one, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

TOKEN = "HYPERPOD_BENCH_TOKEN"  # the environment variable that has the server's token
ROOT = "jupyter_hyperpod/api/v1"
ENDED = ("succeeded", "failed", "stopped")


class Counts:
    """What all clients of this process received since `reset`."""

    def __init__(self) -> None:
        self.connected = 0
        self.reset()

    def reset(self) -> None:
        self.bytes = self.messages = 0
        self.by_type: dict[str, int] = {}  # before compression
        self.delays_s: list[float] = []

    def report(self) -> dict[str, Any]:
        ordered = sorted(self.delays_s)
        return {
            "connected": self.connected,
            "bytes": self.bytes,
            "messages": self.messages,
            "by_type": self.by_type,
            "events": len(ordered),
            "delay_p50_s": _quantile(ordered, 0.5),
            "delay_p99_s": _quantile(ordered, 0.99),
        }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


async def browse(url: str, token: str, card: str, followed: int, counts: Counts) -> None:
    """One browser, until it is cancelled or the server closes the connection."""
    headers = {"Authorization": f"token {token}"}
    await AsyncHTTPClient().fetch(HTTPRequest(f"{url}{ROOT}/settings", headers=headers))
    address = f"ws{url.removeprefix('http')}{ROOT}/stream"
    request = HTTPRequest(address, headers=headers)
    socket = await websocket_connect(request, max_message_size=1 << 28, compression_options={})  # as browsers ask
    told = 0
    await _say(socket, "subscribe", ["cluster", "jobs", card])
    watched = {card}
    while (frame := await socket.read_message()) is not None:
        text = str(frame)
        now_s = time.time()
        got = socket.protocol._wire_bytes_in  # type: ignore[union-attr]
        counts.bytes, told = counts.bytes + got - told, got
        counts.messages += 1
        kind = text[9 : text.index('"', 9)]
        counts.by_type[kind] = counts.by_type.get(kind, 0) + len(text)
        if kind == "events":
            counts.delays_s += [now_s - event["time_s"] for event in json.loads(text)["events"]]
        elif kind == "jobs" and len(watched) == 1:
            counts.connected += 1
            unfinished = [job["id"] for job in json.loads(text)["jobs"] if job["state"] not in ENDED]
            watched |= set(unfinished[:followed])
            if more := sorted(watched - {card}):
                await _say(socket, "subscribe", more)
            watched.add("")  # the list is read once


async def _say(socket: WebSocketClientConnection, kind: str, topics: list[str]) -> None:
    await socket.write_message(json.dumps({"type": kind, "watch": topics, "cursors": {}}))


async def main(url: str, token: str, clients: int, followed: int, cards: list[str]) -> None:
    counts, loop = Counts(), asyncio.get_running_loop()
    browsers = [
        asyncio.create_task(browse(url, token, cards[number % len(cards)], followed, counts))
        for number in range(clients)
    ]
    while await loop.run_in_executor(None, sys.stdin.readline):
        failed = next((task for task in browsers if task.done()), None)
        if failed is not None:
            failed.result()
            raise ConnectionError("the server closed a client's connection")
        print(json.dumps(counts.report()), flush=True)
        counts.reset()
    for task in browsers:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], os.environ[TOKEN], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
