"""A connection between two members while it is authenticated, and what the two sides say to each other."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from dataclasses import dataclass, field

from ...system.encryption import must_encrypt

MAGIC, ENCRYPTED = b"HPM1", b"HPM2"  # of a connection that stays bare, and of one that is encrypted after the proofs
NONCE_BYTES = 16
MAC_BYTES = 32
HANDSHAKE_S = 5.0  # a member proves the secret at once
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

    def late(self, now_s: float) -> bool:
        """Whether the other side has taken too long: it is a stranger.

        A peer that we called may train and answer much later, but goes on at once when it has answered.
        """
        owes = not self.initiator or self.secured is not None
        return owes and self.since_s < now_s - HANDSHAKE_S
