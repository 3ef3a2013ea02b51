"""Chunks over sockets: only to who knows the secret, byte for byte, and never for longer than a peer lives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.loader.share.board import Board
from jupyter_hyperpod.loader.share.discovery import Notice
from jupyter_hyperpod.loader.share.peers import MAGIC, NONCE_BYTES, ChunkServer, Client
from jupyter_hyperpod.loader.share.shared_buffer import SharedBuffer
from jupyter_hyperpod.system.addresses import own_address

SECRET, SUBJECT = os.urandom(32), b"a model"
CONTENT = os.urandom(3 << 20)


@pytest.fixture
def server() -> Iterator[ChunkServer]:
    """Has chunk 0, and chunk 1 not yet."""
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
