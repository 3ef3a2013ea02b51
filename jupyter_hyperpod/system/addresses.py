"""Finds the address at which processes of other nodes reach this one, and ports that they can reach."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

BIND_VARIABLE, AUTOMATIC, LOOPBACK = "HYPERPOD_BIND", "auto", "127.0.0.1"
SOCKETS_ONLY_VARIABLE = "HYPERPOD_SOCKETS_ONLY"  # set where each node is a machine, or is to behave like one
SPEAKS_WITHIN_S = 5
_TABLES = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_LISTENS = "0A"
_V6_LOOPBACK, _V4_IN_V6 = "0" * 24 + "01000000", "0" * 16 + "FFFF0000"  # as proc(5) writes words of an address


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


def listen_for_words(host: str, port: int, backlog: int) -> socket.socket:
    """Listen for callers that speak first: one that says nothing wakes nobody, and waits in the kernel for a while.

    Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=backlog)
    if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux, but not each kernel that behaves like it
        with suppress(OSError):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SPEAKS_WITHIN_S)
    return listener


def port_problem(error: OSError, port: int, owner: str = "") -> str:
    """Why nothing can listen at a port and what to do, as a sentence; "" for an error that is not the port's.

    ``owner``: who is known to listen there.
    """
    if error.errno == errno.EADDRINUSE:
        by = f" by {owner}" if owner else ""
        return f"port {port} is in use{by}; choose another --port, or none for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} may only be used by the administrator; expected a free port from 1024 to 65535 as --port"
    return ""


def port_error(host: str, port: int) -> OSError | None:
    """What would happen to a server that listened there now; None where it could."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def this_loopback() -> str:
    """What tells loopback of this machine, or of this container on it, from all others; "" where that is unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/thread-self/ns/net').st_ino}"
    return ""


def is_loopback(address: str) -> bool:
    """Whether an address is one of this host alone. Raises ValueError for what is no address."""
    return ipaddress.ip_address(address).is_loopback


def is_exposed(port: int) -> bool:
    """Whether somebody listens at this TCP port at an address that other machines may reach."""
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                local, _, state = line.split()[1:4]
                address, _, number = local.partition(":")
                if state == _LISTENS and int(number, 16) == port and not _is_loopback(address):
                    return True
    return False


def _is_loopback(address: str) -> bool:
    if address == _V6_LOOPBACK:
        return True
    return (len(address) == 8 or address.startswith(_V4_IN_V6)) and address.endswith("7F")
