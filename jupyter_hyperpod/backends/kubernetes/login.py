"""The credential with which requests are sent now: read again before it expires, and after the API has refused it."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ...core.errors import ClusterError
from ...core.units import first_line
from .kubeconfig import Access, Plugin, reread

PLUGIN_TIMEOUT_S = 60.0
FILE_AGE_S = 10.0  # a kubelet replaces the token of a pod long before it ends
EARLY_S, EARLY_PART = 30.0, 0.2  # a credential is renewed that long before its end, or that part of its life
AGAIN_S = 5.0
LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request shows; one that is equal to another opens the same doors."""

    token: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    until_s: float | None = field(default=None, compare=False)  # by the clock of this machine; None: not known
    renew_s: float | None = field(default=None, compare=False)


class Login:
    """The present credential and the TLS context that belongs to it, for all threads."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._lock = threading.Lock()
        self._credential: Credential | None = None
        self._read_s = 0.0
        self._context: ssl.SSLContext | None = None
        self.version = 0  # changes with the TLS context: connections made with another are of no use

    def current(self) -> tuple[Credential, int, ssl.SSLContext]:
        """The credential, and the TLS context with its number. Raises ClusterError where there is none to be had."""
        with self._lock:
            if self._credential is None or self._is_old(self._credential):
                self._renew()
            assert self._credential is not None and self._context is not None
            return self._credential, self.version, self._context

    def refused(self, credential: Credential) -> bool:
        """The API has refused this one: read it anew, unless somebody has meanwhile. Whether there is another now."""
        with self._lock:
            if self._credential == credential:
                self.access = reread(self.access)  # a person may have logged in again
                self._read()
            return self._credential != credential

    def _renew(self) -> None:
        """Read anew; where that fails and the present credential is still good, keep it for a while."""
        try:
            self._read()
        except ClusterError:
            now_s, had = time.time(), self._credential
            if had is None or had.until_s is None or now_s >= had.until_s:
                raise
            self._credential = replace(had, renew_s=now_s + AGAIN_S)

    def _is_old(self, credential: Credential) -> bool:
        if credential.renew_s is not None:
            return time.time() >= credential.renew_s
        files = self.access.token_file or self.access.certificate_file
        return bool(files) and time.monotonic() - self._read_s > FILE_AGE_S

    def _read(self) -> None:
        made = read_credential(self.access)
        if self._context is None or self._credential is None or _tls(made) != _tls(self._credential):
            self._context = tls_context(self.access, made)
            self.version += 1
        self._credential, self._read_s = made, time.monotonic()


def _tls(credential: Credential) -> tuple[str, str]:
    return credential.certificate, credential.key


def read_credential(access: Access) -> Credential:
    """Read token and certificate from where the access says. Raises ClusterError."""
    if access.plugin is not None:
        return from_plugin(access.plugin, access)
    token = access.token
    if access.token_file and not (token := _file(access.token_file).strip()):
        raise ClusterError(f"the token file {access.token_file} is empty")
    if not token.isascii() or not token.isprintable():
        raise ClusterError("the token has characters that no token has")
    certificate = access.certificate or (_file(access.certificate_file) if access.certificate_file else "")
    key = access.key or (_file(access.key_file) if access.key_file else "")
    return Credential(token, certificate, key, *_ends(_expiry_of_token(token)))


def from_plugin(plugin: Plugin, access: Access) -> Credential:
    """Run the command and read the credential that it prints. Raises ClusterError, never with what it printed."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.with_cluster:
        ca = base64.b64encode(access.ca.encode()).decode()
        spec["cluster"] = {"server": access.server, "certificate-authority-data": ca} | (
            {"tls-server-name": access.server_name} if access.server_name else {}
        )
    told = {"apiVersion": plugin.version, "kind": "ExecCredential", "spec": spec}
    environment = {**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": json.dumps(told)}
    name = f"`{plugin.command}`, which the kubeconfig names for credentials,"
    try:
        done = subprocess.run(
            [plugin.command, *plugin.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PLUGIN_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except FileNotFoundError as error:
        hint = f": {first_line(plugin.hint, 300)}" if plugin.hint else "; install it, or add its directory to PATH"
        raise ClusterError(f"{name} was not found{hint}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{name} has not ended within {PLUGIN_TIMEOUT_S:g} s") from error.__cause__
    except (OSError, ValueError) as error:
        raise ClusterError(f"{name} cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr[:LIMIT_BYTES].decode(errors="replace").split())[:300]
        raise ClusterError(f"{name} ended with {done.returncode}: {said or 'it says nothing'}; log in again with it")
    try:
        return parse_credential(done.stdout)
    except ValueError as error:
        raise ClusterError(f"{name} printed no credential: {error}") from None


def parse_credential(printed: bytes) -> Credential:
    """The credential in what a plugin prints. Raises ValueError that shows nothing of it."""
    if len(printed) > LIMIT_BYTES:
        raise ValueError(f"it has more than {LIMIT_BYTES} bytes")
    try:
        found = json.loads(printed)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(found, dict) or found.get("kind") != "ExecCredential":
        raise ValueError("expected an object of kind ExecCredential")
    status = found.get("status")
    status = status if isinstance(status, dict) else {}
    token, certificate, key = (
        text if isinstance(text := status.get(name), str) else ""
        for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if not token and not (certificate and key):
        raise ValueError("its status has neither a token nor a client certificate with its key")
    if not token.isascii() or (token and not token.isprintable()):
        raise ValueError("its token has characters that no token has")
    until = status.get("expirationTimestamp")
    if until is None:
        return Credential(token, certificate, key)
    try:
        moment = datetime.fromisoformat(until if isinstance(until, str) else "")
        ends = moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        ends = None
    if ends is None:
        raise ValueError("its expirationTimestamp is no time such as 2030-01-31T12:00:00Z")
    return Credential(token, certificate, key, *_ends(ends))


def _ends(until_s: float | None) -> tuple[float | None, float | None]:
    """When a credential that is read now ends, and when it is to be renewed."""
    if until_s is None:
        return None, None
    now_s = time.time()
    return until_s, until_s - min(EARLY_S, max(0.0, until_s - now_s) * EARLY_PART)


def _expiry_of_token(token: str) -> float | None:
    """When a signed token ends by its own account; None where it says nothing. Nothing is verified: the API does."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def tls_context(access: Access, credential: Credential) -> ssl.SSLContext:
    """How to speak TLS with the server, which has to show a certificate of the cluster. Raises ClusterError."""
    # not create_default_context: since Python 3.13 it refuses authorities of clusters that lack newer extensions
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        if access.skip_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif access.ca:
            context.load_verify_locations(cadata=access.ca)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as error:
        raise ClusterError(f"the certificate authority in {access.source} is no PEM certificate") from error
    if credential.certificate:
        try:
            with _on_disk(credential.certificate) as certificate, _on_disk(credential.key) as key:
                context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError):
            problem = f"the client certificate of {access.source} and its key do not fit, or are no PEM files"
            raise ClusterError(problem) from None
    return context


def _no_password() -> str:
    raise ValueError("keys with a password are not supported")  # OpenSSL would ask at the terminal


@contextmanager
def _on_disk(text: str) -> Iterator[str]:
    """A private file for as long as OpenSSL reads it, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("hyperpod-login", os.MFD_CLOEXEC)
        path, remove = f"/proc/self/fd/{descriptor}", False
    else:
        descriptor, path = tempfile.mkstemp(prefix="hyperpod-")
        remove = True
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            yield path
    finally:
        if remove:
            os.unlink(path)


def _file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(LIMIT_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or "it is no text file"
        raise ClusterError(f"the credential {path} cannot be read: {reason}") from None


def headers(access: Access, credential: Credential) -> list[tuple[str, str]]:
    """What a request says about who sends it."""
    shown = [("Authorization", f"Bearer {credential.token}")] if credential.token else []
    return [*shown, *access.impersonate]
