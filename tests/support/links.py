"""Links between the switch of a testbed and its hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from jupyter_hyperpod.core.errors import ClusterError

UP_S = 60.0


def add_link(ip: Callable[[str], object], host: str, pid: int) -> None:
    """Link the switch, whose commands ``ip`` takes, to the network of the process ``pid`` of a host.

    The link of a namespace that was switched off may still be there, and goes at any moment.
    """
    deadline = time.monotonic() + UP_S
    while True:
        try:
            ip(f"link add {host} type veth peer name eth0 netns {pid}")
            return
        except ClusterError:
            if time.monotonic() > deadline:
                raise
        with suppress(ClusterError):
            ip(f"link delete {host}")
