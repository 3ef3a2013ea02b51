"""Chunks over sockets: only to who knows the secret, byte for byte, and never for longer than a peer lives."""

from __future__ import annotations

import hmac
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.loader.share import peers
from jupyter_hyperpod.loader.share.board import Board
from jupyter_hyperpod.loader.share.discovery import Notice
from jupyter_hyperpod.loader.share.peers import ENCRYPTED, MAGIC, NONCE_BYTES, ChunkServer, Client
from jupyter_hyperpod.loader.share.shared_buffer import SharedBuffer
from jupyter_hyperpod.runtime.comm.mesh import Address
from jupyter_hyperpod.system.addresses import own_address
from jupyter_hyperpod.system.encryption import ENCRYPT_VARIABLE
from tests.runtime.meshes import Relay

SECRET, SUBJECT = os.urandom(32), b"a model"
CONTENT = os.urandom(3 << 20)


@pytest.fixture(params=["off", "on"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChunkServer]:
    """Has chunk 0, and chunk 1 not yet; bare, and encrypted."""
    monkeypatch.setenv(ENCRYPT_VARIABLE, request.param)
    descriptor = os.memfd_create("content")
    os.pwrite(descriptor, CONTENT, 100)
    made = ChunkServer(
        "127.0.0.1", SECRET, SUBJECT, descriptor, lambda number: (100, len(CONTENT)) if not number else None
    )
    yield made
    made.close()
    os.close(descriptor)


def test_a_chunk_arrives_whole_again_and_again(server: ChunkServer) -> None:
    client = Client(server.address, SECRET, SUBJECT)
    for _ in range(3):
        found = bytearray(len(CONTENT))
        assert client.get(0, memoryview(found)) == "got"
        assert found == CONTENT
        assert client.get(1, memoryview(bytearray(1))) == "later"
    server.close()
    assert client.get(0, memoryview(found)) == "gone"
    client.close()


@pytest.mark.parametrize(("secret", "subject"), [(os.urandom(32), SUBJECT), (SECRET, b"another model")])
def test_who_does_not_know_the_secret_is_refused(server: ChunkServer, secret: bytes, subject: bytes) -> None:
    with pytest.raises(PermissionError, match="secret"):
        Client(server.address, secret, subject)


def test_a_stranger_gets_nothing(server: ChunkServer) -> None:
    with socket.create_connection(server.address, 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        assert heard(stranger) == b""
    with socket.create_connection(server.address, 10) as stranger:
        stranger.sendall(MAGIC + bytes(NONCE_BYTES))
        stranger.recv(1000)
        stranger.sendall(bytes(32) + bytes(4))  # no proof, but a request
        assert heard(stranger) == b""


@pytest.mark.parametrize("mode", ["off", "on"])
def test_who_listens_on_the_way_reads_bare_chunks_only(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = b"weights that nobody on the way may read" * 1000
    monkeypatch.setenv(ENCRYPT_VARIABLE, mode)
    descriptor = os.memfd_create("content")
    os.pwrite(descriptor, pattern, 0)
    server = ChunkServer("127.0.0.1", SECRET, SUBJECT, descriptor, lambda _: (0, len(pattern)))
    relay = Relay(Address(*server.address))
    client = Client(relay.address, SECRET, SUBJECT)
    assert client.get(0, memoryview(found := bytearray(len(pattern)))) == "got" and found == pattern
    client.close()
    relay.close()
    server.close()
    os.close(descriptor)
    assert (pattern[:39] in relay.seen["back"]) == (mode == "off")


def test_a_changed_byte_of_an_encrypted_chunk_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes the peer for lost, and reads the chunk from the store."""
    monkeypatch.setenv(ENCRYPT_VARIABLE, "on")
    descriptor = os.memfd_create("content")
    os.pwrite(descriptor, CONTENT, 0)
    server = ChunkServer("127.0.0.1", SECRET, SUBJECT, descriptor, lambda _: (0, len(CONTENT)))
    relay = Relay(Address(*server.address), changed="back")
    client = Client(relay.address, SECRET, SUBJECT)
    relay.flip_at = len(relay.seen["back"]) + 100_000
    assert client.get(0, memoryview(found := bytearray(len(CONTENT)))) == "gone"
    assert len(found.rstrip(b"\0")) < 100_000
    client.close()
    relay.close()
    server.close()
    os.close(descriptor)


def test_a_caller_that_does_not_encrypt_where_it_has_to_gets_nothing(
    server: ChunkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    must = os.environ[ENCRYPT_VARIABLE] == "on"
    with socket.create_connection(server.address, 10) as caller:
        caller.sendall(hello := MAGIC + bytes(NONCE_BYTES))
        if must:
            assert heard(caller) == b""
            return
        nonce = caller.recv(NONCE_BYTES + 32, socket.MSG_WAITALL)[:NONCE_BYTES]
        caller.sendall(hmac.digest(SECRET, b"fanout a" + hello + nonce + SUBJECT, "sha256") + bytes(4))
        assert caller.recv(1) == b"\1"


@pytest.mark.parametrize("server", ["on"], indirect=True)
def test_a_proven_caller_that_never_begins_tls_is_hung_up_on(
    server: ChunkServer, eventually: Callable[..., Any]
) -> None:
    with socket.create_connection(server.address, 10) as caller:
        caller.sendall(hello := ENCRYPTED + bytes(NONCE_BYTES))
        nonce = caller.recv(NONCE_BYTES + 32, socket.MSG_WAITALL)[:NONCE_BYTES]
        caller.sendall(hmac.digest(SECRET, b"fanout a" + hello + nonce + SUBJECT, "sha256"))
        assert heard(caller) == b""
    eventually(lambda: not server._callers)


@pytest.mark.parametrize("server_ends", [True, False])
def test_who_is_served_while_it_ends_never_takes_what_is_encrypted_for_content(
    server: ChunkServer, server_ends: bool, eventually: Callable[..., Any]
) -> None:
    for _ in range(20):
        client = Client(server.address, SECRET, SUBJECT)
        answers: list[str] = []

        def take(client: Client = client, answers: list[str] = answers) -> None:
            while not answers or answers[-1] == "got":
                answers.append(client.get(0, memoryview(room := bytearray(len(CONTENT)))))
                assert answers[-1] != "got" or room == CONTENT

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        eventually(lambda answers=answers: answers)
        if server_ends:
            for caller in list(server._callers):
                peers._hang_up(caller)
        else:
            client.close()
        taking.join(50)
        assert answers[-1] == "gone"
        client.close()
    eventually(lambda: not server._callers)


def test_a_worn_connection_is_replaced(monkeypatch: pytest.MonkeyPatch, server: ChunkServer) -> None:
    monkeypatch.setattr(peers, "RENEW_BYTES", 2 * len(CONTENT))
    client = Client(server.address, SECRET, SUBJECT)
    worn = []
    for _ in range(3):
        assert client.get(0, memoryview(bytearray(len(CONTENT)))) == "got"
        worn.append(client.worn)
    client.close()
    assert worn == ([False, True, True] if os.environ[ENCRYPT_VARIABLE] == "on" else [False] * 3)


def heard(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(1000)
    except ConnectionResetError:
        return b""


def test_a_claim_is_one_processs_until_it_dies() -> None:
    buffer = SharedBuffer.create(3, [100])
    other = SharedBuffer.attach(buffer.place, 3, [100])
    assert buffer.claim(1)
    assert not other.claim(1)
    assert other.claim(0)
    assert other.claim(1, again=True)
    buffer.release(1)
    assert other.claim(1)
    held = "from jupyter_hyperpod.loader.share.shared_buffer import BufferAddress, SharedBuffer; import sys; "
    held += f"own = SharedBuffer.attach({buffer.place}, 3, [100]); print(own.claim(2), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"True\n"
        assert not buffer.claim(2)
        process.kill()
    assert buffer.claim(2), "whoever held it is gone"
    buffer.view(0, 10, 3)[:] = b"abc"
    assert other.private[other.starts[0] + 10 :][:3].tobytes() == b"abc"
    other.private[other.starts[0] + 10] = ord("x")
    assert bytes(buffer.view(0, 10, 3)) == b"abc", "what one writes to its tensors nobody else sees"
    with pytest.raises(OSError, match="something else"):
        SharedBuffer.attach(buffer.place, 4000, [100])


def test_the_first_text_under_a_name_stands_and_the_last_who_leaves_clears_up(tmp_path: Path) -> None:
    board, same = Board(tmp_path / "board"), Board(tmp_path / "board")
    assert board.put("unit-1", "mine") == "mine"
    assert same.put("unit-1", "theirs") == "mine"
    for one in ("at-a", "at-b"):
        board.put(one, "here")
    assert same.names("at-") == ["at-a", "at-b"]
    board.leave("at-a", "at-")
    assert same.get("unit-1") == "mine"
    same.leave("at-b", "at-")
    assert not (tmp_path / "board").exists()
    assert board.put("at-c", "here") == "here", "who comes later begins anew"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"place": {"pid": "x"}, "node": "", "host": "", "port": 0}'])
def test_what_is_no_notice_is_none(text: str) -> None:
    assert Notice.decode(text) is None


def test_a_notice_comes_back_as_it_was() -> None:
    notice = Notice(SharedBuffer.create(1, [1]).place, "node-1", "10.0.0.1", 4000)
    assert Notice.decode(notice.encode()) == notice


def test_auto_is_the_address_from_which_the_coordinator_is_reached(tmp_path: Path) -> None:
    endpoint = tmp_path / "coordinator.json"
    assert own_address("10.0.0.1", endpoint) == "10.0.0.1"
    for text in (None, "{}", "[]", "x"):
        if text is not None:
            endpoint.write_text(text)
        with pytest.raises(OSError, match=r"coordinator"):
            own_address("auto", endpoint)
    endpoint.write_text('{"host": "127.0.0.1", "port": 9}')
    assert own_address("auto", endpoint) == "127.0.0.1"
