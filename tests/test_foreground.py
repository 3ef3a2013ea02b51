"""The foreground of a cluster whose supervisor goes in the middle of a request, or does not go at all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from jupyter_hyperpod.control.clusters import foreground
from jupyter_hyperpod.storage import host_lease
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.json_lines import listen

SOCKET = "supervisor.sock"


@pytest.fixture
def silent(store: Store) -> Iterator[list[bytes]]:
    """A supervisor that reads requests and answers none; at the first it has gone. What it has read."""
    directory = host_lease.directory_of_host(store)
    directory.mkdir(parents=True, exist_ok=True)
    heard: list[bytes] = []

    def serve() -> None:
        with listen(directory, SOCKET) as listener:
            ready.append(True)
            listener.settimeout(50)
            while not any(heard):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(50)
                    if content := connection.recv(1 << 12):
                        (directory / SOCKET).unlink()
                        heard.append(content)

    ready: list[bool] = []
    thread = Thread(target=serve)
    thread.start()
    while not ready:
        thread.join(0.01)
    yield heard
    thread.join(50)
    assert not thread.is_alive()


def test_a_supervisor_that_goes_without_an_answer_has_left(store: Store, silent: list[bytes]) -> None:
    told: list[str] = []
    assert foreground.stay(store, [signal.SIGUSR1], told.append) == foreground.EXIT_LEFT, "SLURM starts it anew"
    assert silent == [b'{"op":"leave"}\n'] and told == [f"SIGUSR1: {foreground.LEFT}"]
