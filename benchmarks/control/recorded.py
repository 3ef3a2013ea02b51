"""What strangers say: what somebody recorded of real connections, and what is built to be too long."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from benchmarks.control.stranger_crowd import GARBAGE, REPLAYED, SLOW, TOO_LONG
from jupyter_hyperpod.loader.share import peers
from jupyter_hyperpod.runtime.comm import handshake, mesh
from jupyter_hyperpod.runtime.connection import MAGIC, NONCE_BYTES, Channel

Address = tuple[str, int]
BOUND_S = 10.0
SUBJECT = b"a model"


class Recorder:
    """Listens in place of a server, passes on what both sides send, and keeps what the first client sends."""

    def __init__(self, server: Address) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()[:2]
        self.kept = bytearray()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> bytes:
        """What was recorded, when the client has left."""
        self._thread.join(BOUND_S)
        self._listener.close()
        return bytes(self.kept)

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._server, BOUND_S) as server:
            down = threading.Thread(target=_pass_on, args=(server, client, None), daemon=True)
            down.start()
            _pass_on(client, server, self.kept)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            down.join(BOUND_S)


def _pass_on(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
    with suppress(OSError):
        while content := source.recv(1 << 16):
            if kept is not None:
                kept += content
            target.sendall(content)


@contextmanager
def recording(server: Address) -> Iterator[tuple[Address, Callable[[], bytes]]]:
    """The address of a recorder before ``server``, and what ends it and returns the bytes of its client."""
    recorder = Recorder(server)
    yield recorder.address, recorder.close


def control(server: Address, secret: bytes) -> dict[str, str]:
    """What is said to a coordinator; recorded is a handshake with a first message, which means nothing to it."""
    with recording(server) as (address, ended):
        channel = Channel(socket.create_connection(address, BOUND_S), secret, initiator=True)
        channel.send({"type": "recorded"})
        if not channel.flush(BOUND_S):
            raise TimeoutError("the coordinator does not answer")
        channel.close()
        kept = ended()
    return _said(kept, MAGIC + bytes(NONCE_BYTES) + struct.pack(">I", 2**32 - 1) + bytes(4096))


def between_members(secret: bytes) -> dict[str, str]:
    """What is said to a member; recorded is a handshake of two members of the first generation of the same job."""
    kept: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as calls, socket.create_server(("127.0.0.1", 0)) as answers:
        doors = [mesh.MeshListener(listener, secret) for listener in (calls, answers)]
        own, called = (mesh.Address(*listener.getsockname()[:2]) for listener in (calls, answers))
        with recording(called) as (address, ended):
            addresses = [own, mesh.Address(*address)]
            formed: list[mesh.Mesh] = []

            def form(rank: int) -> None:
                formed.append(doors[rank].form(1, rank, addresses, -1, lambda: None, lambda peer: None))

            other = threading.Thread(target=form, args=(1,), daemon=True)
            other.start()
            form(0)
            other.join(BOUND_S)
            for made in formed:
                made.close()
            kept.append(ended())
        for door in doors:
            door.close()
    beyond = handshake.HELLO.pack(handshake.MAGIC, 2**64 - 1, 0, os.urandom(handshake.NONCE_BYTES))
    return _said(kept[0], beyond + bytes(4096))


def fan_out(server: Address, secret: bytes) -> dict[str, str]:
    """What is said to a rank that passes on a model; recorded is a client that proves the secret and gets a chunk."""
    with recording(server) as (address, ended):
        client = peers.Client(address, secret, SUBJECT)
        client.get(0, memoryview(bytearray(chunk_bytes())))
        client.close()
        kept = ended()
    return _said(kept, peers.MAGIC + bytes(peers.NONCE_BYTES) + bytes(peers.MAC_BYTES) + b"\xff" * 4096)


def gateway() -> dict[str, str]:
    """What is said to a gateway. Nothing is replayed: whoever reads a token on the way has the token."""
    head = "POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: {}\r\n\r\n"
    said = _said(b"", head.format(2**50).encode() + bytes(4096))
    said[SLOW] = head.format(1 << 20).encode().hex() + bytes(4096).hex()
    return said


def chunk_bytes() -> int:
    """Bytes of the one chunk that the bench's fan-out has."""
    return 1 << 16


def _said(recorded: bytes, too_long: bytes) -> dict[str, str]:
    garbage = b"GET / HTTP/1.1\r\nHost: x\r\n" + bytes(range(256)) * 4
    said = {GARBAGE: garbage, SLOW: recorded or garbage, TOO_LONG: too_long}
    if recorded:
        said[REPLAYED] = recorded
    return {kind: words.hex() for kind, words in said.items()}
