"""The conventional rendezvous: a central store, hosted by rank 0, gives all members each other's addresses.

Used where the component ``init`` is switched off. The store holds only addresses; each connection still has to prove
the job's secret.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed

from .mesh import Address

POLL_S = 0.002
CONNECT_TIMEOUT = timedelta(seconds=2)


def host(bind: str) -> tuple[Any, int]:
    """Serve a store on a free port of `bind`; return it and the port."""
    server = socket.create_server((bind, 0))
    port = int(server.getsockname()[1])
    store = torch.distributed.TCPStore(
        bind, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
    )
    return store, port


def connect(address: Address) -> Any:
    """Connect to the store of rank 0. Raises OSError."""
    try:
        return torch.distributed.TCPStore(address.host, address.port, is_master=False, timeout=CONNECT_TIMEOUT)
    except (torch.distributed.DistError, RuntimeError) as error:
        raise OSError(f"the store at {address.host}:{address.port} does not answer: {error}") from error


def exchange_addresses(
    store: Any, rank: int, own: Address, world_size: int, check: Callable[[], None]
) -> list[Address]:
    """Publish `own`, wait for all others, and return all addresses by rank. `check` may raise to give up.

    Raises OSError where the store has gone.
    """
    try:
        store.set(str(rank), json.dumps(own))
        names = [str(other) for other in range(world_size)]
        while not store.check(names):
            check()
            time.sleep(POLL_S)
        found = [Address(*json.loads(store.get(name))) for name in names]
        store.add("seen", 1)
        while rank == 0 and store.add("seen", 0) < world_size:  # the store ends with its host
            check()
            time.sleep(POLL_S)
    except (torch.distributed.DistError, RuntimeError) as error:
        raise OSError(f"the store of rank 0 is gone: {error}") from error
    return found
