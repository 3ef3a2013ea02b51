"""Encrypted connections between members: who can read them, who can change them, and who is kept out."""

from __future__ import annotations

import hmac
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cryptography import x509

from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.runtime.comm import handshake
from jupyter_hyperpod.runtime.comm.handshake import ENCRYPTED, HELLO, MAC_BYTES, MAGIC, NONCE_BYTES
from jupyter_hyperpod.runtime.comm.kinds import CHUNK, gloo
from jupyter_hyperpod.runtime.comm.link_queues import move
from jupyter_hyperpod.runtime.comm.mesh import Address, MeshListener, PeerLost
from jupyter_hyperpod.runtime.comm.pair_transfer import StripeServer
from jupyter_hyperpod.system.addresses import SOCKETS_ONLY_VARIABLE
from jupyter_hyperpod.system.encryption import (
    ENCRYPT_VARIABLE,
    MODES,
    check_encryption,
    encrypted,
    leaves_host,
    must_encrypt,
    was_changed,
)
from tests.runtime.conftest import Run, Submit, counting_links, encrypted_links
from tests.runtime.meshes import BOUND_S, SECRET, Relay, doors, form, nothing, relayed, say, together

PATTERN = b"a planted pattern, which nobody on the way may read"
BARE_HANDSHAKE = HELLO.size + MAC_BYTES
FLIP_AT = 40_000  # of the bytes from the caller: behind both handshakes, inside a record of data


class GivenUp(Exception):
    """What ends a member that still forms."""


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCRYPT_VARIABLE, "on")


@pytest.mark.parametrize("mode", ["on", "off"])
def test_who_listens_on_the_way_reads_a_bare_connection_only(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCRYPT_VARIABLE, mode)
    with relayed() as (meshes, relay):
        sent = PATTERN * 2000
        assert say(meshes, sent) == sent
        there = bytes(relay.seen["there"])
    assert len(there) > len(sent)
    assert (PATTERN in there) == (mode == "off")
    assert SECRET not in there + bytes(relay.seen["back"])


def test_a_changed_byte_breaks_the_connection_and_nothing_wrong_arrives() -> None:
    sent, room = os.urandom(200_000), bytearray(200_000)
    with relayed(FLIP_AT) as (meshes, _):

        def one(rank: int) -> None:
            if rank == 0:
                with suppress(PeerLost):  # all may be in the kernel before it hears of the break
                    meshes[0].exchange([(1, memoryview(sent))], [(1, memoryview(bytearray(1)))], -1, nothing)
                return
            try:
                with pytest.raises(PeerLost) as caught:
                    meshes[1].exchange([], [(0, memoryview(room))], -1, nothing)
                assert was_changed(caught.value.__cause__)
            finally:
                meshes[1].close()

        together(2, one)
    arrived = len(room.rstrip(b"\0"))
    assert 0 < arrived < FLIP_AT, "what came before arrives, nothing behind it"
    assert room[:arrived] == sent[:arrived]


def test_a_changed_byte_of_a_bare_connection_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would show without encryption."""
    monkeypatch.setenv(ENCRYPT_VARIABLE, "off")
    sent = bytes(200_000)
    with relayed(FLIP_AT) as (meshes, _):
        assert sum(say(meshes, sent)) == 1


@pytest.mark.parametrize("flip_at", [0, 3, 20, HELLO.size + 3, BARE_HANDSHAKE + 20])
def test_a_changed_byte_of_a_handshake_opens_no_connection(flip_at: int) -> None:
    """One attempt fails, at whatever place; the next attempt, which nobody changes, is a connection that works."""
    with relayed(flip_at) as (meshes, relay):
        assert say(meshes, PATTERN) == PATTERN
        hello = bytes(relay.seen["there"][: HELLO.size])
        assert relay.seen["there"].count(hello[:4]) > 1, "it called again"


def test_what_is_sent_again_breaks_the_connection() -> None:
    with relayed() as (meshes, relay):
        room = bytearray(2 * len(PATTERN))

        def one(rank: int) -> None:
            try:
                if rank == 0:
                    meshes[0].exchange([(1, memoryview(PATTERN))], [], -1, nothing)
                    with suppress(PeerLost):
                        meshes[0].exchange([], [(1, memoryview(bytearray(1)))], -1, nothing)
                else:
                    with pytest.raises(PeerLost) as caught:
                        meshes[1].exchange([], [(0, memoryview(room))], -1, nothing)
                    assert was_changed(caught.value.__cause__)
            finally:
                meshes[rank].close()

        relay.repeat_at = len(relay.seen["there"])
        together(2, one)
    assert room == PATTERN + bytes(len(PATTERN)), "it arrives once"


def test_who_repeats_a_recorded_call_is_no_member() -> None:
    with relayed() as (meshes, relay):
        assert say(meshes, PATTERN) == PATTERN
        recorded = bytes(relay.seen["there"])
    with doors(2) as (entrances, addresses), socket.create_connection(addresses[1], BOUND_S) as again:
        answers = Forming(1, addresses, entrances[1])
        again.sendall(recorded)
        with suppress(ConnectionResetError):
            assert len(again.recv(1000, socket.MSG_WAITALL)) == NONCE_BYTES + MAC_BYTES, "an answer, then the end"
        assert answers.goes_on
        form(entrances[0], 1, 0, addresses).close()
        assert answers.end(told=False) is None


def test_a_newcomer_that_does_not_encrypt_ends_what_a_donor_offers(eventually: Callable[..., object]) -> None:
    """It is told when it joins; here an exception in the donor's thread would fail the test."""
    server = StripeServer(gloo("127.0.0.1", CHUNK), "127.0.0.1", SECRET, 1, torch.zeros(10, dtype=torch.uint8))
    with socket.create_connection((server.source.host, server.source.port), BOUND_S) as bare:
        prove_as_caller(bare, MAGIC)
        eventually(lambda: not any(thread.name == "hyperpod-stripe" for thread in threading.enumerate()))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.source.host, server.source.port), BOUND_S)
    server.close()


class Forming:
    """A member that forms a generation of two, in a thread, until it is told to give up."""

    def __init__(self, rank: int, addresses: Sequence[Address], door: MeshListener) -> None:
        self.warned: list[str] = []
        self._heard, self._tell = socket.socketpair()
        self.raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._form, args=(rank, addresses, door), daemon=True)
        self._thread.start()

    def _form(self, rank: int, addresses: Sequence[Address], door: MeshListener) -> None:
        try:
            control = self._heard.fileno()
            door.form(1, rank, addresses, control, self._give_up, nothing, self.warned.append).close()
        except BaseException as error:
            self.raised.append(error)

    def _give_up(self) -> None:
        raise GivenUp

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def end(self, *, told: bool = True) -> BaseException | None:
        """Let it end; returns what it raised."""
        if told:
            self._tell.send(b"!")
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()
        self._heard.close()
        self._tell.close()
        return self.raised[0] if self.raised else None


def proof(side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(SECRET, side + transcript, "sha256")


def prove_as_caller(sock: socket.socket, magic: bytes, answered: Callable[[], None] = nothing) -> bytes:
    """Say what rank 0 says before TLS begins, with a call of ``answered`` before the proof; returns the transcript."""
    sock.sendall(hello := HELLO.pack(magic, 1, 0, bytes(NONCE_BYTES)))
    answer = sock.recv(NONCE_BYTES + MAC_BYTES, socket.MSG_WAITALL)
    transcript = hello + answer[:NONCE_BYTES]
    answered()
    sock.sendall(proof(b"call", transcript))
    return transcript


def test_a_caller_that_never_begins_tls_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 2.0)
    with doors(2) as (entrances, addresses), socket.create_connection(addresses[1], BOUND_S) as mute:
        answers = Forming(1, addresses, entrances[1])
        prove_as_caller(mute, ENCRYPTED)
        assert mute.recv(1) == b"", "it is hung up on"
        assert answers.goes_on
        form(entrances[0], 1, 0, addresses).close()
        assert answers.end(told=False) is None


def test_a_peer_that_never_answers_tls_is_a_stranger_and_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 2.0)
    with doors(1) as (entrances, addresses), socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BOUND_S)
        calls = Forming(0, [addresses[0], Address(*server.getsockname()[:2])], entrances[0])
        for _ in range(2):
            mute, _ = server.accept()
            with mute:
                prove_as_answerer(mute)
                while mute.recv(1 << 16):  # what TLS begins with, and then the end
                    pass
        assert calls.goes_on
        assert isinstance(calls.end(), GivenUp)
        assert len(calls.warned) == 1 and "rank 1" in calls.warned[0] and "says nothing" in calls.warned[0]


@pytest.mark.parametrize(("said", "after"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", 1), (b"", 2)])
def test_a_member_warns_once_where_tls_fails_again_and_again(said: bytes, after: int) -> None:
    """A connection that ends is no failure the first time: the peer may have been lost."""
    with doors(1) as (entrances, addresses), socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BOUND_S)
        calls = Forming(0, [addresses[0], Address(*server.getsockname()[:2])], entrances[0])
        warned = []
        for _ in range(4):
            peer, _ = server.accept()
            with peer:
                prove_as_answerer(peer)
                assert peer.recv(1 << 16), "TLS begins"
                warned.append(len(calls.warned))
                peer.sendall(said)
                with suppress(OSError):  # the member may have hung up at once
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(1 << 16):
                        pass
        assert isinstance(calls.end(), GivenUp)
    assert warned == [0] * after + [1] * (4 - after)
    assert "rank 1 has proved" in calls.warned[0] and f"{ENCRYPT_VARIABLE}=off" in calls.warned[0]


def prove_as_answerer(sock: socket.socket) -> None:
    """Say what rank 1 says before TLS begins."""
    sock.settimeout(BOUND_S)
    hello, nonce = sock.recv(HELLO.size, socket.MSG_WAITALL), os.urandom(NONCE_BYTES)
    sock.sendall(nonce + proof(b"answer", hello + nonce))
    assert sock.recv(MAC_BYTES, socket.MSG_WAITALL) == proof(b"call", hello + nonce)


@pytest.mark.parametrize("in_tls", [False, True], ids=["a proof", "a greeting of TLS"])
def test_a_peer_that_has_spoken_in_time_is_no_stranger_to_a_member_that_is_late(
    monkeypatch: pytest.MonkeyPatch, in_tls: bool
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 2.0)
    late, begun = threading.Event(), threading.Event()
    heard, tell = socket.socketpair()
    encrypt = handshake.Handshake.encrypt

    def noted(one: handshake.Handshake, secret: bytes) -> int | None:
        wanted = encrypt(one, secret)
        begun.set()
        return wanted

    def be_late() -> None:
        heard.recv(1)
        late.set()
        time.sleep(2.5)  # as one that begins TLS with thousands of peers

    def make_late() -> None:
        tell.send(b"!")
        assert late.wait(BOUND_S)

    monkeypatch.setattr(handshake.Handshake, "encrypt", noted)
    with heard, tell, doors(2) as (entrances, addresses), socket.create_connection(addresses[1], BOUND_S) as sock:

        def life(rank: int) -> None:
            if rank == 1:
                entrances[1].form(1, 1, addresses, heard.fileno(), be_late, nothing).close()
                return
            transcript = prove_as_caller(sock, ENCRYPTED, nothing if in_tls else make_late)
            if in_tls:
                assert begun.wait(BOUND_S)
                make_late()
            with encrypted(sock, SECRET, transcript, calls=True) as secured:
                secured.do_handshake()
                assert secured.recv(1) == b"", "it has formed, and closes"

        together(2, life)


@pytest.mark.parametrize(
    "policy",
    [
        "ssl_conf = ssl\n[ssl]\nsystem_default = policy\n[policy]\nMaxProtocol = TLSv1.2",
        "alg_section = algorithms\n[algorithms]\ndefault_properties = fips=yes",
    ],
    ids=["no TLS 1.3", "FIPS without its module"],
)
def test_a_host_that_cannot_encrypt_says_so_and_what_to_set(policy: str, tmp_path: Path) -> None:
    told = form_under(policy, tmp_path, "on")
    assert "TrainingError" in told and socket.gethostname() in told and f"{ENCRYPT_VARIABLE}=off" in told, told
    assert "formed" in form_under(policy, tmp_path, "off")


def form_under(policy: str, folder: Path, mode: str) -> str:
    """What two members say that form under a crypto policy of the system."""
    (folder / "openssl.cnf").write_text(f"openssl_conf = all\n[all]\n{policy}\n")
    source = "from tests.runtime.meshes import meshes\nmade = meshes(2)\nprint('formed')"
    env = os.environ | {"OPENSSL_CONF": str(folder / "openssl.cnf"), ENCRYPT_VARIABLE: mode}
    done = subprocess.run(
        [sys.executable, "-c", source], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    return done.stdout


def test_a_host_that_has_no_descriptor_left_may_encrypt_later() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_encryption.cache_clear()
    with open(os.devnull) as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), before[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                check_encryption()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    check_encryption()


def test_members_of_another_job_do_not_get_in(eventually: Callable[..., object]) -> None:
    with doors(1) as (own, addresses), doors(1, b"x" * 32) as (foreign, others):
        relay = Relay(others[0])
        both = [addresses[0], relay.address]
        members = [Forming(0, both, own[0]), Forming(1, both, foreign[0])]
        eventually(lambda: len(relay.seen["there"]) > 3 * HELLO.size, message="it calls again and again")
        assert all(member.goes_on for member in members)
        assert all(isinstance(member.end(), GivenUp) for member in members)
        relay.close()


@pytest.mark.parametrize("other", [(b"x" * 32, b"transcript"), (SECRET, b"another transcript")])
def test_a_certificate_of_another_secret_or_connection_is_refused(other: tuple[bytes, bytes]) -> None:
    """TLS alone, without the proofs before it: each side trusts one certificate, its own."""
    with pair() as (left, right), encrypted(left, SECRET, b"transcript", calls=True) as calls:
        answers = encrypted(right, *other, calls=False)
        refused: list[OSError] = []

        def answer() -> None:
            with answers:
                try:
                    answers.do_handshake()
                except OSError as error:
                    refused.append(error)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with pytest.raises(ssl.SSLCertVerificationError):
            calls.do_handshake()
        calls.close()
        answering.join(BOUND_S)
        assert refused


@pytest.mark.parametrize("shown", [True, False])
def test_a_caller_without_the_certificate_is_refused(shown: bool) -> None:
    """One that trusts everybody: with a certificate of another secret, or with none."""
    with pair() as (left, right), encrypted(right, SECRET, b"transcript", calls=False) as answers:
        if shown:
            calls = encrypted(left, b"x" * 32, b"transcript", calls=True)
            calls.context.verify_mode = ssl.CERT_NONE
            context = calls.context
            left = socket.socket(fileno=calls.detach())
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

        def call() -> None:
            with suppress(OSError), context.wrap_socket(left) as sock:
                sock.recv(1)

        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        with pytest.raises(ssl.SSLError):
            answers.do_handshake()
        answers.close()
        calling.join(BOUND_S)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname(), BOUND_S)
        right, _ = server.accept()
    with left, right:
        right.settimeout(BOUND_S)
        yield left, right


def test_members_that_disagree_are_told_what_to_set() -> None:
    with doors(2) as (entrances, addresses), socket.create_connection(addresses[1], BOUND_S) as bare:
        answers = Forming(1, addresses, entrances[1])
        prove_as_caller(bare, MAGIC)
        told = answers.end(told=False)
    assert isinstance(told, TrainingError) and ENCRYPT_VARIABLE in str(told)


def test_parts_of_records_are_read_and_written() -> None:
    """A buffer is received in parts that end inside a record, the last one, too; a large one is sent in parts."""
    lengths = [1, 16_383, 16_385, 3, 30_001, 100, 2]
    sent = os.urandom(sum(lengths))
    rooms = [[bytearray(length) for length in lengths] for _ in range(2)]
    with relayed() as (meshes, _):

        def one(rank: int) -> None:
            peer = 1 - rank
            for number, room in enumerate(rooms[rank]):
                sends = [(peer, memoryview(sent))] if number == 0 else []
                receives = [(peer, memoryview(room))]
                meshes[rank].exchange(sends, receives, -1, nothing)

        together(2, one)
        large = os.urandom(20_000_001)  # more than the kernel keeps
        assert say(meshes, large) == large
    assert [b"".join(parts) for parts in rooms] == [sent, sent]


def test_many_small_buffers_are_filled_from_one_record() -> None:
    sent, room = os.urandom(1000), bytearray(1000)
    with relayed() as (meshes, _):

        def one(rank: int) -> None:
            if rank == 0:
                meshes[0].exchange([(1, memoryview(sent))], [], -1, nothing)
            else:
                meshes[1].exchange([], [(0, memoryview(room)[at : at + 1]) for at in range(1000)], -1, nothing)

        together(2, one)
    assert room == sent


def test_a_call_for_a_new_generation_does_not_wait_until_a_large_buffer_is_encrypted() -> None:
    """The other side takes all at once: the connection never blocks, so nothing else would end the writing."""
    given: list[int] = []

    def takes_all(piece: memoryview) -> int:
        given.append(len(piece))
        return len(piece)

    waiting = deque([memoryview(bytes(100 << 20))])
    move(takes_all, waiting, 1)
    assert sum(given) + len(waiting[0]) == 100 << 20
    assert max(given) <= 1 << 20 and sum(given) <= 16 << 20, "a few ms of encryption"


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_job_that_encrypts_loses_a_rank_and_changes_no_bit(
    job: Submit, reference: Run, tmp_path: Path, mode: str
) -> None:
    environment = {ENCRYPT_VARIABLE: mode, SOCKETS_ONLY_VARIABLE: "1", "PAUSE_S": "0.03"}
    run = job(counting_links(tmp_path), env=environment, spares=0)
    run.until_step(6)
    run.kill(1)
    run.finish()
    run.same_as(reference)
    assert max(encrypted_links(tmp_path)) == (2 if mode == "on" else 0)


def test_both_sides_have_the_same_certificate_and_each_connection_another() -> None:
    def certificate(transcript: bytes, calls: bool) -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
            secured = encrypted(sock, SECRET, transcript, calls=calls)
            with secured:
                trusted = secured.context.get_ca_certs(binary_form=True)
                assert secured.context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert len(trusted) == 1
        assert x509.load_der_x509_certificate(trusted[0]).not_valid_before_utc.timestamp() < 0, "a clock may begin at 0"
        return trusted[0]

    assert certificate(b"one", True) == certificate(b"one", False) != certificate(b"two", True)


@pytest.mark.parametrize(
    ("own", "peer", "leaves"),
    [
        ("10.0.0.1", "10.0.0.2", True),
        ("10.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "::1", False),
        ("fd00::1", "fd00::2", True),
        ("127.0.0.1", "10.0.0.1", True),
    ],
)
def test_a_connection_leaves_the_host_if_its_ends_have_other_addresses(own: str, peer: str, leaves: bool) -> None:
    assert leaves_host(own, peer) == leaves_host(peer, own) == leaves


def test_the_mode_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(own: str, peer: str) -> socket.socket:
        return SimpleNamespace(getsockname=lambda: (own, 1), getpeername=lambda: (peer, 2))  # type: ignore[return-value]

    chosen = {}
    for mode in MODES:
        monkeypatch.setenv(ENCRYPT_VARIABLE, mode)
        chosen[mode] = [must_encrypt(ends(*pair)) for pair in (("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.1"))]
    assert chosen == {"between-hosts": [True, False], "on": [True, True], "off": [False, False]}
    monkeypatch.delenv(ENCRYPT_VARIABLE)
    assert must_encrypt(ends("10.0.0.1", "10.0.0.2")) and not must_encrypt(ends("10.0.0.1", "10.0.0.1"))
    monkeypatch.setenv(ENCRYPT_VARIABLE, "yes")
    with pytest.raises(TrainingError, match="'yes'.*between-hosts, on, off"):
        must_encrypt(ends("10.0.0.1", "10.0.0.2"))
