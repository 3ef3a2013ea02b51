"""What a member has yet to send to and receive from each peer, and the moves of bytes that make it less."""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable

from ...system.encryption import WOULD_BLOCK

Transfer = tuple[int, memoryview]


class PeerLost(Exception):
    """The connection to a peer broke; ``rank`` is its place in the generation."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"the connection to rank {rank} broke")
        self.rank = rank


NOTHING: deque[memoryview] = deque()
PIECE_BYTES = 1 << 20  # in one call: TLS encrypts all that it is given before it returns
PIECES = 16  # until other connections, and a call for a new generation, have their turn


def queues(transfers: Iterable[Transfer]) -> dict[int, deque[memoryview]]:
    queues: dict[int, deque[memoryview]] = {}
    for rank, view in transfers:
        if len(view):
            queues.setdefault(rank, deque()).append(view)
    return queues


def mask_of(rank: int, outgoing: dict[int, deque[memoryview]], incoming: dict[int, deque[memoryview]]) -> int:
    return (select.POLLOUT if outgoing.get(rank) else 0) | (select.POLLIN if incoming.get(rank) else 0)


def move(operation: Callable[[memoryview], int], queue: deque[memoryview], rank: int) -> None:
    """Move bytes between a socket and the head of a queue: a few pieces, or until the socket would block."""
    try:
        for _ in range(PIECES):
            if not queue:
                return
            count = operation(queue[0][:PIECE_BYTES])
            if count == 0:
                raise PeerLost(rank)
            if count == len(queue[0]):
                queue.popleft()
            else:
                queue[0] = queue[0][count:]
    except WOULD_BLOCK:
        pass
    except OSError as error:
        raise PeerLost(rank) from error


def take(link: socket.socket, queue: deque[memoryview], rank: int) -> None:
    """Receive what has come, with all of a record that has been decrypted: `poll` does not see that."""
    move(link.recv_into, queue, rank)
    while isinstance(link, ssl.SSLSocket) and queue and link.pending():
        move(link.recv_into, queue, rank)
