"""A connection between two members while it is authenticated, what the two sides say to each other, and new keys."""

from __future__ import annotations

import hmac
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...system.encryption import ENCRYPT_VARIABLE, RENEW_BYTES, encrypted, go_on, must_encrypt

MAGIC, ENCRYPTED = b"HPM1", b"HPM2"  # of a connection that stays bare, and of one that is encrypted after the proofs
NONCE_BYTES = 16
MAC_BYTES = 32
HANDSHAKE_S = 5.0  # a member proves the secret at once
TLS_FAILS = (
    "rank {peer} has proved the job's secret, but TLS with it fails: {reason}. It is tried again until it works. Where "
    "it never does, something between the two hosts changes what they say, or their crypto policies differ; "
    "{variable}=off on all nodes leaves what members exchange unencrypted"
)
HELLO = struct.Struct(f">4sQI{NONCE_BYTES}s")


@dataclass(eq=False)
class Handshake:
    """A connection that is being authenticated: mutual proof of the job's secret, bound to the generation."""

    sock: socket.socket
    initiator: bool
    peer: int = -1
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES))
    inbox: bytes = b""
    transcript: bytes = b""
    secured: ssl.SSLSocket | None = None  # once both sides have proved the secret
    since_s: float = 0.0  # when the other side began to owe its next message
    descriptor: int = field(init=False)  # of the connection, also after it has been closed

    def __post_init__(self) -> None:
        self.descriptor = self.sock.fileno()

    @property
    def needed(self) -> int:
        """Length of the other side's next message."""
        if self.initiator:
            return NONCE_BYTES + MAC_BYTES
        return MAC_BYTES if self.transcript else HELLO.size

    @property
    def unanswered(self) -> bool:
        """Whether a caller waits for its first answer: its generation is unknown, or has just become known."""
        return not self.initiator and not self.transcript

    @property
    def too_bare(self) -> bool:
        """Whether a caller did not ask for the encryption that this side has to have."""
        if self.initiator or self.transcript.startswith(ENCRYPTED):
            return False
        try:
            return must_encrypt(self.sock)
        except OSError:
            return False  # it has gone: nothing can be said on this connection

    @property
    def unread(self) -> bool:
        """Whether the other side has said, or ended, something of which this side has not taken notice yet."""
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        return bool(poller.poll(0))

    def encrypt(self, secret: bytes) -> int | None:
        """Begin the handshake of TLS, or go on with it, when the other side has said something.

        Returns what to poll for, None when both sides have finished. Raises TrainingError where this host cannot
        encrypt, OSError.
        """
        if not self.secured:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # nothing answers the last proof
            self.sock = self.secured = encrypted(self.sock, secret, self.transcript, calls=self.initiator)
        wanted = go_on(self.secured)
        self.since_s = time.monotonic()
        return wanted

    def late(self, now_s: float) -> bool:
        """Whether the other side has taken too long: it is a stranger.

        A peer that we called may train and answer much later, but goes on at once when it has answered.
        """
        owes = not self.initiator or self.secured is not None
        return owes and self.since_s < now_s - HANDSHAKE_S


class TlsFailures:
    """Warns once per peer of one generation, where TLS fails with it although it has proved the secret.

    A connection that ends is no such failure the first time: the peer may have been lost, or be in a later generation.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._ended: set[int] = set()
        self._told: set[int] = set()

    def note(self, peer: int, reason: OSError) -> None:
        """TLS has failed with a peer."""
        ended = isinstance(reason, (ssl.SSLEOFError, ConnectionError))
        if peer not in self._told and (not ended or peer in self._ended):
            self._told.add(peer)
            self._warn(TLS_FAILS.format(peer=peer, reason=reason, variable=ENCRYPT_VARIABLE))
        self._ended.add(peer)


class KeyRenewal:
    """Counts what encrypted connections of one generation carry, and begins new keys: `ssl` cannot update them.

    Both sides of a connection count the same bytes, so they need not tell each other when it is time.
    """

    def __init__(self, secret: bytes, rank: int, transcripts: Mapping[int, bytes]) -> None:
        self._secret, self._rank = secret, rank
        self._transcripts = dict(transcripts)
        self._sent, self._received = dict.fromkeys(transcripts, 0), dict.fromkeys(transcripts, 0)

    def count(self, outgoing: Mapping[int, Iterable[memoryview]], incoming: Mapping[int, Iterable[memoryview]]) -> None:
        """These bytes are about to be exchanged with each peer."""
        for peer in self._transcripts:
            self._sent[peer] += sum(map(len, outgoing.get(peer, ())))
            self._received[peer] += sum(map(len, incoming.get(peer, ())))

    def due(self) -> list[int]:
        """The peers whose connections need new keys, in the order in which all members take their pairs."""
        return [peer for peer in sorted(self._sent) if max(self._sent[peer], self._received[peer]) >= RENEW_BYTES]

    def begin(self, peer: int, bare: socket.socket) -> ssl.SSLSocket:
        """Put a connection, of which nothing is under way, under TLS anew; its keys do not follow from the old ones.

        Raises OSError.
        """
        self._sent[peer] = self._received[peer] = 0
        transcript = hmac.digest(self._secret, b"renewed " + self._transcripts[peer], "sha256")
        self._transcripts[peer] = transcript
        return encrypted(bare, self._secret, transcript, calls=self._rank < peer)
