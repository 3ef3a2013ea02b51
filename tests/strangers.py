"""A thousand strangers at a listener: what they say, and what a process that they call may grow by."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.loader.share import peers
from jupyter_hyperpod.runtime.comm import handshake
from jupyter_hyperpod.runtime.connection import MAGIC, NONCE_BYTES

Wait = Callable[..., Any]
Address = tuple[str, int] | Path
COUNT = 1000
PLACES = 300  # more than any listener keeps for strangers and a few others
BOUND_S = 30.0

GARBAGE = b"GET / HTTP/1.1\r\nHost: x\r\n" + bytes(range(256)) * 4
PROOFS = {
    "fanout": peers.MAGIC + bytes(peers.NONCE_BYTES + peers.MAC_BYTES),
    "control": MAGIC + bytes(NONCE_BYTES) + struct.pack(">I", 2) + bytes(16) + b"{}",
    "mesh": handshake.HELLO.pack(handshake.MAGIC, 1, 0, bytes(handshake.NONCE_BYTES)) + bytes(handshake.MAC_BYTES),
    "http": b"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n",
    "store": bytes(64),
    "lines": b'{"op": "no such request"}\n',
}
TOO_LONG = {
    "control": MAGIC + bytes(NONCE_BYTES) + struct.pack(">I", 2**32 - 1) + bytes(4096),
    "mesh": handshake.HELLO.pack(handshake.MAGIC, 2**64 - 1, 0, bytes(handshake.NONCE_BYTES)) + bytes(4096),
    "fanout": PROOFS["fanout"] + b"\xff" * 4096,
    "http": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1125899906842624\r\n\r\n" + bytes(4096),
}
kinds = pytest.mark.parametrize("kind", ["say nothing", "send garbage", "prove nothing", "leave at once"])
all_kinds = pytest.mark.parametrize("kind", [*kinds.args[1], "send slowly", "announce too much"])


@contextmanager
def strangers(address: Address, kind: str, protocol: str) -> Iterator[None]:
    """A thousand connections of one kind; those that do not leave at once stay until the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * COUNT)), hard))
    said = {
        "send garbage": GARBAGE,
        "prove nothing": PROOFS[protocol],
        "announce too much": TOO_LONG.get(protocol, b""),
    }
    crowd: list[socket.socket] = []
    over = threading.Event()
    slow = threading.Thread(target=_trickle, args=(crowd, PROOFS[protocol], over))
    if kind == "send slowly":
        slow.start()
    try:
        for _ in range(COUNT):
            with suppress(OSError):  # it may hang up while we speak
                crowd.append(dial(address))
                if said.get(kind):
                    crowd[-1].sendall(said[kind])
                if kind == "leave at once":
                    crowd.pop().close()
        yield
    finally:
        over.set()
        if kind == "send slowly":
            slow.join()
        for one in crowd:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _trickle(crowd: list[socket.socket], words: bytes, over: threading.Event) -> None:
    """Let each send byte after byte: one in each turn."""
    for number in count():
        for one in list(crowd):
            with suppress(OSError):
                one.send(words[number % len(words)].to_bytes())
        if over.wait(0.05):
            return


def dial(address: Address) -> socket.socket:
    if not isinstance(address, Path):
        return socket.create_connection(address, BOUND_S)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.settimeout(BOUND_S)
    directory = os.open(address.parent, os.O_RDONLY)
    try:
        one.connect(f"/proc/self/fd/{directory}/{address.name}")
    except OSError:
        one.close()
        raise
    finally:
        os.close(directory)
    return one


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
