"""Encrypts a connection between hosts: TLS 1.3 by a key of its own, which both sides derive from what they share.

Neither a file nor an authority takes part: both sides derive the same key pair and the same certificate, show it to
each other and trust this one alone.
"""

from __future__ import annotations

import errno
import functools
import hmac
import ipaddress
import os
import select
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ..core.errors import TrainingError
from .memory_files import create_memory_file

ENCRYPT_VARIABLE = "HYPERPOD_ENCRYPT"
BETWEEN_HOSTS = "between-hosts"
MODES = (BETWEEN_HOSTS, "on", "off")
RENEW_BYTES = 64 << 30  # in one direction: RFC 8446 (5.5) allows 2**24.5 records of 16 KB under one key, 390 GB
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hyperpod")])
_SINCE, _UNTIL = datetime(1950, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)  # whatever a host's clock reads


def encryption_mode() -> str:
    """Which connections are encrypted, one of `MODES`. Raises TrainingError for a mode that does not exist."""
    mode = os.environ.get(ENCRYPT_VARIABLE, "") or BETWEEN_HOSTS
    if mode not in MODES:
        raise TrainingError(f"{ENCRYPT_VARIABLE} is {mode!r}; expected one of {', '.join(MODES)}")
    return mode


def must_encrypt(sock: socket.socket) -> bool:
    """Whether this connection has to be encrypted. Raises TrainingError for a mode that does not exist, OSError."""
    mode = encryption_mode()
    return mode == "on" or (mode == BETWEEN_HOSTS and leaves_host(sock.getsockname()[0], sock.getpeername()[0]))


def leaves_host(own: str, peer: str) -> bool:
    """Whether a connection between two addresses leaves the host: on one host, its two ends have the same address."""
    return own != peer and not (ipaddress.ip_address(own).is_loopback and ipaddress.ip_address(peer).is_loopback)


def encrypted(sock: socket.socket, secret: bytes, transcript: bytes, *, calls: bool) -> ssl.SSLSocket:
    """Put a connected socket, whose descriptor stays the same, under TLS; `do_handshake` is left to the caller.

    The key is bound to `transcript`, so that two connections cannot be spliced. Raises TrainingError where this host
    cannot encrypt, OSError.
    """
    context = encryption_context(secret, transcript, calls=calls)
    return context.wrap_socket(sock, server_side=not calls, do_handshake_on_connect=False)


def encryption_context(secret: bytes, transcript: bytes, *, calls: bool) -> ssl.SSLContext:
    """The same for a library that connects and accepts by itself, for connections to one address.

    Raises TrainingError where this host cannot encrypt, OSError.
    """
    check_encryption()
    return _context(secret, transcript, calls=calls)


@functools.cache
def check_encryption() -> None:
    """Encrypt a byte in memory, once in a process: what fails here would fail with every peer, for ever.

    Raises TrainingError where this host cannot encrypt, OSError where it has no descriptor or memory left now.
    """
    try:
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        secret = os.urandom(32)
        calls = _context(secret, b"trial", calls=True).wrap_bio(back, there)
        answers = _context(secret, b"trial", calls=False).wrap_bio(there, back, server_side=True)
        for end in (calls, answers, calls, answers):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        calls.write(b"!")
        answers.read(1)
    except Exception as error:  # OpenSSL, `cryptography` and the kernel refuse in ways of their own
        if isinstance(error, OSError) and error.errno in _PASSING and not isinstance(error, ssl.SSLError):
            raise
        raise TrainingError(
            f"{socket.gethostname()} cannot encrypt connections between members ({type(error).__name__}: {error}). "
            "They need TLS 1.3 and an Ed25519 key in a memory file: FIPS mode or a crypto policy of the system may "
            f"forbid them. {ENCRYPT_VARIABLE}=off on all nodes leaves what members exchange unencrypted"
        ) from error


def _context(secret: bytes, transcript: bytes, *, calls: bool) -> ssl.SSLContext:
    key = Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, b"tls " + transcript, "sha256"))
    built = x509.CertificateBuilder(_NAME, _NAME, key.public_key(), 1, _SINCE, _UNTIL)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = built.sign(key, None).public_bytes(Encoding.PEM)  # Ed25519 signs the same bytes alike everywhere
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if calls else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    if not calls:
        context.num_tickets = 0
    _load(context, certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return context


def go_on(sock: ssl.SSLSocket) -> int | None:
    """Go on with a handshake as far as a socket that does not block allows.

    Returns what to poll for, None when both sides have finished. Raises OSError.
    """
    try:
        sock.do_handshake()
    except WOULD_BLOCK as wanted:
        return select.POLLOUT if isinstance(wanted, ssl.SSLWantWriteError) else select.POLLIN
    return None


def was_changed(error: BaseException | None) -> bool:
    """Whether what arrived on an encrypted connection was changed on the way, rather than cut off."""
    told = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError) and error.reason
    return bool(told) and "ALERT" not in str(told)  # an alert: the other side has found it


def _load(context: ssl.SSLContext, content: bytes) -> None:
    descriptor = create_memory_file("hyperpod-key", 0)  # the key never reaches a disk
    try:
        os.write(descriptor, content)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
