"""Members of one generation as threads of a test, each with a door of its own on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from jupyter_hyperpod.runtime.comm.mesh import Address, Mesh, MeshListener

SECRET = b"s" * 32
JOIN_TIMEOUT_S = 30.0


def nothing(*_: Any) -> None:
    """A check that never calls, a peer that is never missed."""


@contextmanager
def doors(count: int, secret: bytes = SECRET) -> Iterator[tuple[list[MeshListener], list[Address]]]:
    """Doors and where they are; shut at the end."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = [Address(*listener.getsockname()) for listener in listeners]
        entrances = [MeshListener(listener, secret) for listener in listeners]
        for door in entrances:
            stack.callback(door.close)
        yield entrances, addresses


def together(count: int, life: Callable[[int], Any]) -> list[Any]:
    """Run ``life(rank)`` for every rank at once and return what each returned; an exception in one is raised here."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = life(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a member hangs"
    return results


def meshes(count: int, generation: int = 1) -> list[Mesh]:
    """Connected meshes, one a rank."""
    with doors(count) as (entrances, addresses):
        return together(count, lambda rank: form(entrances[rank], generation, rank, addresses))


def form(door: MeshListener, generation: int, rank: int, addresses: Sequence[Address]) -> Mesh:
    """Form without a coordinator."""
    return door.form(generation, rank, addresses, -1, nothing, nothing)
