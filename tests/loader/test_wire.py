"""Connections, over real sockets and real TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_hyperpod.loader.read.http_connection import Connection, ConnectionBroken
from jupyter_hyperpod.loader.read.http_target import target_of

BODY = 64 << 20


@pytest.fixture
def flood(certificates: tuple[Path, Path, Path]) -> Iterator[str]:
    """An https server that answers whoever connects with zeros, as fast as it can; its URL."""
    certificate, key, _ = certificates
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    threads, accepted = [], []

    def answer(raw: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(raw, server_side=True) as connection:
            accepted.append(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BODY)
            for _ in range(BODY >> 16):
                connection.sendall(bytes(1 << 16))

    def serve() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=[listener.accept()[0]]))
                threads[-1].start()

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/zeros"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        listener.close()
        for connection in accepted:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_what_is_aborted_never_writes_ciphertext_into_memory(flood: str, certificates: tuple[Path, Path, Path]) -> None:
    target, path = target_of(flood, 10.0, str(certificates[2]))
    for number in range(10):
        memory, connection = bytearray(BODY), Connection(target)
        connection.send(f"GET {path} HTTP/1.1\r\nHost: {target.authority}\r\n\r\n".encode())
        connection.head()
        begun = threading.Event()

        def receive(connection: Connection = connection, memory: bytearray = memory, begun=begun) -> None:  # type: ignore[no-untyped-def]
            connection.fill(memoryview(memory)[:65536])
            begun.set()
            with suppress(ConnectionBroken):  # unless all had come before the end
                connection.fill(memoryview(memory)[65536:])

        thread = threading.Thread(target=receive)
        thread.start()
        assert begun.wait(50)
        connection.abort()
        thread.join(50)
        connection.close()
        assert not memory.strip(b"\0"), f"trial {number}: the memory holds what only the network may carry"
