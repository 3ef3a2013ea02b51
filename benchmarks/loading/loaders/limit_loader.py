"""What no loader can beat: the same ranges from the same server, received and thrown away, as much memory touched.

Each connection receives into a small block that stays in the processor's cache. Nothing is kept, so nothing is checked.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

from benchmarks.loading.loaders.process import (
    LIBC,
    PAGE_BYTES,
    POPULATE_WRITE,
    Facts,
    Load,
    Task,
    header_of,
    huge_block,
    ranges,
)
from benchmarks.loading.loaders.signed import headers_for

BLOCK = 512 * 1024
KEEPS = False


class Connection:
    """One keep-alive connection that counts what it throws away."""

    def __init__(self, task: Task, head: str) -> None:
        self.head = head
        self.socket = socket.create_connection(
            (urlsplit(task.endpoint).hostname or "", urlsplit(task.endpoint).port or 80)
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.block = memoryview(bytearray(BLOCK))

    def ask(self, offset: int, length: int) -> bytes:
        """Request a range; returns what came of the body together with the head."""
        self.socket.sendall(f"{self.head}Range: bytes={offset}-{offset + length - 1}\r\n\r\n".encode())
        found = b""
        while b"\r\n\r\n" not in found:
            found += self.socket.recv(16 * 1024)
        head, _, body = found.partition(b"\r\n\r\n")
        if b" 206 " not in head[:16] and b"\r\nContent-Range: " not in head:  # rclone calls a range 200
            raise ConnectionError(head.decode())
        return body

    def get(self, offset: int, length: int) -> bytes:
        """The bytes of a range."""
        body = self.ask(offset, length)
        while len(body) < length:
            body += self.socket.recv(length - len(body))
        return body

    def discard(self, offset: int, length: int) -> None:
        """Receive a range and forget it."""
        left = length - len(self.ask(offset, length))
        self.wake_at(BLOCK)
        while left:
            if left <= 2 * BLOCK:
                self.wake_at(1)
            count = self.socket.recv_into(self.block, min(left, BLOCK), socket.MSG_WAITALL)
            if not count:
                raise ConnectionError(f"{left} bytes were missing")
            left -= count

    def wake_at(self, count: int) -> None:
        """Be woken when so many bytes are there, not for every packet."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def touch(memory: np.ndarray[Any, np.dtype[np.uint8]], place: int, length: int) -> None:
    """Have these pages there; the kernel does it fastest."""
    begin = place // PAGE_BYTES * PAGE_BYTES
    address, size = ctypes.c_void_p(memory.ctypes.data + begin), ctypes.c_size_t(place + length - begin)
    if LIBC.madvise(address, size, POPULATE_WRITE):  # a kernel before 5.14
        memory[begin : place + length : PAGE_BYTES] = 1


def prepare(task: Task) -> Load:
    """``settings["touch"]`` is false where not even the memory is touched."""
    mine = local()
    path = f"/{task.bucket}/{task.key}"
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers_for(task, path).items()), ""]

    def connection() -> Connection:
        if not hasattr(mine, "connection"):
            mine.connection = Connection(task, "\r\n".join(lines))
        found: Connection = mine.connection
        return found

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        start, _, length = header_of(task, connection().get)
        memory = np.frombuffer(huge_block(length), np.uint8)

        def one(part: tuple[int, int]) -> None:
            if task.settings.get("touch", True):
                touch(memory, part[0] - start, part[1])
            connection().discard(*part)

        with ThreadPoolExecutor(task.connections) as pool:
            for _ in pool.map(one, list(ranges(start, length))):
                pass
        return {"memory": torch.from_numpy(memory[:length])} if task.settings.get("touch", True) else {}

    return load
