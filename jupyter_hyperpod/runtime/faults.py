"""Faults that can be injected: the same injector serves tests, benchmarks, `%hyperpod fault` and demos."""

from __future__ import annotations

import signal
import socket

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago, for the person's own process group."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
