"""New keys for encrypted connections that have carried much, and what happens where that goes wrong."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.runtime.comm import handshake
from jupyter_hyperpod.runtime.comm.mesh import Mesh, PeerLost
from jupyter_hyperpod.system.addresses import SOCKETS_ONLY_VARIABLE
from jupyter_hyperpod.system.encryption import ENCRYPT_VARIABLE, RENEW_BYTES
from tests.runtime.conftest import TRAIN, Run, Submit
from tests.runtime.meshes import meshes, nothing, relayed, together

LIMIT = 50_000  # bytes
RFC_LIMIT_BYTES = int(2**24.5) * 2**14


class GivenUp(Exception):
    """A new generation is called."""


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCRYPT_VARIABLE, "on")
    monkeypatch.setattr(handshake, "RENEW_BYTES", LIMIT)


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The transcript from which each new key was derived, on both sides."""
    found: list[bytes] = []
    begin = handshake.encrypted

    def noted(sock: socket.socket, secret: bytes, transcript: bytes, *, calls: bool) -> ssl.SSLSocket:
        found.append(transcript)
        return begin(sock, secret, transcript, calls=calls)

    monkeypatch.setattr(handshake, "encrypted", noted)
    return found


@pytest.fixture
def three() -> Iterator[list[Mesh]]:
    made = meshes(3)
    yield made
    for mesh in made:
        mesh.close()


def pass_on(mesh: Mesh, length: int) -> None:
    """Rank 0 sends to rank 1, and both say a word to rank 2; what arrives has to be right."""
    sent, room = bytes(range(251)) * (length // 251), bytearray(length // 251 * 251)
    word = memoryview(b"word")
    rooms = {peer: memoryview(bytearray(4)) for peer in range(3) if peer != mesh.rank}
    sends = [(peer, word) for peer in rooms] + ([(1, memoryview(sent))] if mesh.rank == 0 else [])
    receives = list(rooms.items()) + ([(0, memoryview(room))] if mesh.rank == 1 else [])
    mesh.exchange(sends, receives, -1, nothing)
    assert all(room == word for room in rooms.values())
    assert mesh.rank != 1 or room == sent


def test_only_the_pair_that_has_carried_much_gets_new_keys_again_and_again(
    three: list[Mesh], renewed: list[bytes]
) -> None:
    def life(rank: int) -> None:
        for _ in range(7):
            pass_on(three[rank], 30_000)
            three[rank].renew_keys(-1, nothing)

    together(3, life)
    assert len(renewed) == 2 * 3, "every second exchange reaches the limit; each key has two sides"
    assert len(set(renewed)) == 3, "each key is another one, and both sides have it"


def test_keys_are_renewed_well_below_what_one_key_may_protect() -> None:
    assert RENEW_BYTES < RFC_LIMIT_BYTES / 4


def test_a_bare_connection_has_no_keys(renewed: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCRYPT_VARIABLE, "off")
    made = meshes(3)

    def life(rank: int) -> None:
        pass_on(made[rank], 4 * LIMIT)
        made[rank].renew_keys(-1, nothing)
        pass_on(made[rank], 1000)
        made[rank].close()

    together(3, life)
    assert not renewed


def test_a_member_that_is_lost_while_keys_are_renewed_is_named(three: list[Mesh]) -> None:
    def life(rank: int) -> None:
        pass_on(three[rank], 2 * LIMIT)
        if rank == 1:
            three[1].close()
        elif rank == 0:
            with pytest.raises(PeerLost) as lost:
                three[0].renew_keys(-1, nothing)
            assert lost.value.rank == 1

    together(3, life)


def test_a_call_is_heard_while_a_peer_is_waited_for(three: list[Mesh]) -> None:
    heard, tell = socket.socketpair()

    def give_up() -> None:
        raise GivenUp

    def life(rank: int) -> None:
        pass_on(three[rank], 2 * LIMIT)
        if rank == 0:
            tell.send(b"!")
            with pytest.raises(GivenUp):
                three[0].renew_keys(heard.fileno(), give_up)

    with heard, tell:
        together(3, life)


def test_a_changed_byte_of_new_keys_breaks_the_connection() -> None:
    with relayed() as (pair, relay):
        together(2, lambda rank: say_all(pair[rank]))
        relay.flip_at = len(relay.seen["there"]) + 100  # inside the greeting of TLS
        lost: list[Any] = []

        def renew(rank: int) -> None:
            try:
                pair[rank].renew_keys(-1, nothing)
                pair[rank].exchange([], [(1 - rank, memoryview(bytearray(1)))], -1, nothing)
            except PeerLost as error:
                lost.append(error)
            finally:
                pair[rank].close()

        together(2, renew)
        assert len(lost) == 2


def say_all(mesh: Mesh) -> None:
    """Both of two members send more than the limit."""
    peer = 1 - mesh.rank
    mesh.exchange([(peer, memoryview(bytes(LIMIT)))], [(peer, memoryview(bytearray(LIMIT)))], -1, nothing)


def test_a_peer_that_has_not_counted_the_same_is_lost_and_nothing_wrong_arrives(three: list[Mesh]) -> None:
    """It cannot be: both count the same bytes. If it were, no side would take one thing for another."""
    room = bytearray(100)

    def life(rank: int) -> None:
        pass_on(three[rank], 2 * LIMIT)
        try:
            if rank == 0:
                with suppress(PeerLost):
                    three[0].renew_keys(-1, nothing)
            elif rank == 1:
                with pytest.raises(PeerLost):
                    three[1].exchange([], [(0, memoryview(room))], -1, nothing)
        finally:
            three[rank].close()

    together(3, life)
    assert room == bytes(100)


def test_a_job_renews_keys_loses_a_rank_and_changes_no_bit(job: Submit, reference: Run, tmp_path: Path) -> None:
    source = f"""
from jupyter_hyperpod.runtime.comm import handshake
def noted(renewal, peer, bare, begin=handshake.KeyRenewal.begin):
    with open(f"{tmp_path}/renewed-{{__import__('os').getpid()}}", "a") as file:
        print(peer, file=file)
    return begin(renewal, peer, bare)
handshake.KeyRenewal.begin, handshake.RENEW_BYTES = noted, 5_000
{TRAIN}"""
    run = job(source, env={ENCRYPT_VARIABLE: "on", SOCKETS_ONLY_VARIABLE: "1", "PAUSE_S": "0.03"}, spares=0)
    run.until_step(8)
    run.kill(1)
    run.finish()
    run.same_as(reference)
    counts = [len(path.read_text().split()) for path in tmp_path.glob("renewed-*")]
    assert len(counts) >= 3 and min(counts) >= 2, counts
