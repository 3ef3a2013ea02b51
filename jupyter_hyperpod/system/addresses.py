"""Finds the address at which processes of other nodes reach this one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

BIND_VARIABLE, AUTOMATIC, LOOPBACK = "HYPERPOD_BIND", "auto", "127.0.0.1"


def own_address(asked: str, endpoint: Path) -> str:
    """Return where to listen: `asked`, or for "auto" the address from which this node reaches the host in `endpoint`.

    Raises OSError where that is unknown.
    """
    if asked != AUTOMATIC:
        return asked
    try:
        found = json.loads(endpoint.read_text())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting it sends nothing
            probe.connect((found["host"], found["port"]))
            return str(probe.getsockname()[0])
    except (ValueError, LookupError, TypeError) as error:
        raise OSError(f"{endpoint} names no coordinator: {error}") from None
