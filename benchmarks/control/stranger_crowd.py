"""Strangers: a process that calls listening sockets at a steady pace, and says what no member or client says.

It says when it is ready to read a plan, one line of JSON (see `Plan`), and when all have called. It holds the
connections, and goes on sending byte by byte, until its input ends.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle

from jupyter_hyperpod.system.processes import raise_descriptor_limit

SILENT, GARBAGE, SLOW, REPLAYED, TOO_LONG = KINDS = ("silent", "garbage", "slow", "replayed", "too long")
TICK_S = 0.05  # between two bytes of a slow sender
NICENESS = 19  # what they cost themselves is not what is measured


@dataclass(frozen=True, slots=True)
class Target:
    """A listening socket, and what each kind of stranger says to it (hexadecimal); silent ones say nothing."""

    host: str
    port: int
    said: dict[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """``count`` connections, to all targets and of all kinds in turn, within ``seconds``."""

    targets: list[Target]
    count: int
    seconds: float

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, text: str) -> Plan:
        record = json.loads(text)
        return cls([Target(**target) for target in record["targets"]], record["count"], record["seconds"])


class Crowd:
    """The connections that have been opened."""

    def __init__(self) -> None:
        self.refused = 0
        self._open: list[socket.socket] = []
        self._slow: list[tuple[socket.socket, Iterator[int]]] = []
        self._next_s = 0.0

    def call(self, target: Target, kind: str) -> None:
        """Open a connection; what cannot be sent at once is left out."""
        try:
            sock = socket.create_connection((target.host, target.port), timeout=1.0)
        except OSError:
            self.refused += 1
            return
        sock.setblocking(False)
        self._open.append(sock)
        words = bytes.fromhex(target.said.get(kind, ""))
        if kind == SLOW:
            self._slow.append((sock, cycle(words)))
        elif words:
            with suppress(OSError):
                sock.send(words)

    def go_on(self) -> None:
        """Let every slow sender send its next byte, when that is due."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + TICK_S
        for sock, words in self._slow:
            with suppress(OSError):  # it was hung up on
                sock.send(bytes([next(words)]))


def main() -> None:
    """Call, then hold until the input ends."""
    os.nice(NICENESS)
    raise_descriptor_limit()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    plan, crowd = Plan.decode(sys.stdin.readline()), Crowd()
    kinds = [kind for kind in KINDS if kind == SILENT or any(kind in target.said for target in plan.targets)]
    began_s = time.monotonic()
    for number in range(plan.count):
        while (early_s := began_s + plan.seconds * number / plan.count - time.monotonic()) > 0:
            time.sleep(min(early_s, TICK_S))
            crowd.go_on()
        target = plan.targets[number % len(plan.targets)]
        kind = kinds[number // len(plan.targets) % len(kinds)]
        crowd.call(target, kind if kind in target.said else SILENT)
    print(json.dumps({"called": plan.count, "refused": crowd.refused}), flush=True)
    while not select.select([sys.stdin], [], [], TICK_S)[0]:
        crowd.go_on()


if __name__ == "__main__":
    main()
