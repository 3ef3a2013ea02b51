"""A server on the loopback interface with a thread per connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

BACKLOG = 256
JOIN_S = 50.0


class LoopbackServer:
    """Accepts connections from `start` until `close`; a subclass answers them in `serve`."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port = int(self._listener.getsockname()[1])

    def serve(self, connection: socket.socket) -> None:
        """Answer a client; an OSError ends its connection."""
        raise NotImplementedError

    def start(self) -> None:
        """Accept connections in a thread."""
        self._run(self._accept)

    def close(self) -> None:
        """End every connection and wait for the threads."""
        self.closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(JOIN_S)

    def disconnect(self) -> None:
        """End the connections that are open now."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def ended_by_close(self, connection: socket.socket) -> Iterator[None]:
        """Let `close` and `disconnect` end a connection during the block. Raises OSError after `close`."""
        with self._lock:
            self._open.add(connection)
        try:
            if self.closing.is_set():
                raise OSError("the server is closed")
            yield
        finally:
            with self._lock:
                self._open.discard(connection)

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        def body() -> None:
            try:
                target(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=body, name=type(self).__name__, daemon=True)
        with self._lock:  # `close` waits for threads that have been started
            self._threads.add(thread)
            thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._run(self._begin, connection)

    def _begin(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), self.ended_by_close(connection):
            self.serve(connection)
