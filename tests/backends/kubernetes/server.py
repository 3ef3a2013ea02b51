"""A TLS server on loopback that answers as a test tells it to, for what a real API server does not do on demand.

Not an API server: what the client does with a real one is tested in tests/kubernetes.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trustme

from jupyter_hyperpod.backends.kubernetes.kubeconfig import Access

Answer = bytes | None  # None: hang up
CUT = None


def answer(status: int, body: Any = None, headers: Sequence[str] = ()) -> bytes:
    """An answer of the API, with its length."""
    payload = json.dumps({} if body is None else body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(payload)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + payload


def status_of(status: int, reason: str, message: str = "") -> bytes:
    """A refusal of the API."""
    return answer(status, {"kind": "Status", "reason": reason, "message": message})


@dataclass
class ScriptedServer:
    """What it was asked, and on how many connections."""

    port: int
    authority: trustme.CA
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    accepted: int = 0
    connections: int = 0  # of which the client has trusted the certificate

    def access(self, **others: Any) -> Access:
        """An access to it."""
        ca = self.authority.cert_pem.bytes().decode()
        return Access(**{"server": f"https://127.0.0.1:{self.port}", "ca": ca, "source": "a test", **others})

    @property
    def tokens(self) -> list[str]:
        """The tokens that it was shown, in order."""
        return [headers.get("authorization", "").removeprefix("Bearer ") for _, headers, _ in self.asked]


@contextmanager
def scripted(answers: Callable[[int], Answer], client_ca: trustme.CA | None = None) -> Iterator[ScriptedServer]:
    """Serve; ``answers`` gives the answer to the request of that number, from 0 on."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if client_ca is not None:
        client_ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ScriptedServer(listener.getsockname()[1], authority)
        open_ones: list[socket.socket] = []
        threads: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                open_ones.append(plain)
                server.accepted += 1
                threads.append(threading.Thread(target=serve, args=(plain,), daemon=True))
                threads[-1].start()

        def serve(plain: socket.socket) -> None:
            with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as secured:
                server.connections += 1
                file = secured.makefile("rb")
                while line := file.readline():
                    headers = {}
                    while (header := file.readline().decode().strip()) != "":
                        name, _, value = header.partition(": ")
                        headers[name.lower()] = value
                    body = file.read(int(headers.get("content-length", "0")))
                    server.asked.append((line.decode().rpartition(" ")[0], headers, body))
                    said = answers(len(server.asked) - 1)
                    if said is None:
                        return
                    secured.sendall(said)

        threads.append(threading.Thread(target=accept, daemon=True))
        threads[0].start()
        try:
            yield server
        finally:
            for one in (listener, *open_ones):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            listener.close()
            for thread in threads:
                thread.join(50)
