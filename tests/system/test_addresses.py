"""Ports that other machines can reach, of real sockets."""

from __future__ import annotations

import socket

import pytest

from jupyter_hyperpod.system.addresses import is_exposed


@pytest.mark.parametrize(
    ("family", "address", "exposed"),
    [
        (socket.AF_INET, "127.0.0.1", False),
        (socket.AF_INET, "127.8.0.1", False),
        (socket.AF_INET, "0.0.0.0", True),
        (socket.AF_INET6, "::1", False),
        (socket.AF_INET6, "::ffff:127.0.0.1", False),
        (socket.AF_INET6, "::", True),
    ],
)
def test_a_port_of_loopback_is_for_this_machine_only(family: socket.AddressFamily, address: str, exposed: bool) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        port = listener.getsockname()[1]
        assert not is_exposed(port), "nobody listens yet"
        listener.listen()
        assert is_exposed(port) == exposed
