"""Requests to the API server and their answers: connections that are used again, timeouts, and repeats where safe.

A request that nobody has received may always be sent again. One that may have been received is repeated only where
its sender says that this does no harm.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from ...core.errors import ClusterError
from ...core.units import cut
from .kubeconfig import Access
from .login import Credential, Login, headers
from .rights import remedy

CONNECT_S, ANSWER_S = 10.0, 30.0
TRIES, PAUSE_S, LONGEST_PAUSE_S = 6, 0.1, 5.0
IDLE_MOST = 8
ANSWER_BYTES = 128 << 20
PATH = re.compile(r"(?:/[A-Za-z0-9._:~-]+)+")
# A server that has just begun knows neither roles nor accounts for a moment, and refuses what it has allowed before.
FORGETFUL = (401, 403)
BUSY, UNSURE = (429,), (500, 502, 503, 504)  # not done; perhaps done
VERBS = {"GET": "read", "POST": "create", "PATCH": "change", "PUT": "change", "DELETE": "delete"}
IN_PODS = {"exec": "run a command in the pod", "log": "read the log of the pod"}
INVALID = 422
REMEDIES = {
    401: "the credentials are not accepted: log in to the cluster again",
    403: "ask who runs the cluster for this right",
}


class ApiError(ClusterError):
    """The API server refused a request: ``status`` is HTTP's, ``reason`` a word of the API such as AlreadyExists."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.final = status == INVALID
        self.repeated = False  # an earlier try of the same request may have been received, too

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return type(self), (self.status, self.reason, self.message)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request; ``repeatable``: it does no harm if it arrives twice."""

    method: str
    path: str
    query: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"
    repeatable: bool = True

    @property
    def target(self) -> str:
        """What stands in the request line, below the server's own prefix. Raises ClusterError for what is no path."""
        if not PATH.fullmatch(self.path) or ".." in self.path.split("/"):
            raise ClusterError(f"{cut(self.path, 200)!r} is no path of the Kubernetes API")
        query = urlencode(list(self.query.items()) if isinstance(self.query, Mapping) else list(self.query))
        return f"{self.path}?{query}" if query else self.path

    @property
    def right(self) -> tuple[str, str]:
        """What has to be allowed for it: the method, and the path without the names of objects."""
        parts = self.path.split("/")
        start = 3 if parts[1:2] == ["api"] else 4
        if len(parts) > start + 2 and parts[start] == "namespaces":
            start += 2
        return self.method, "/".join([*parts[: start + 1], *parts[start + 2 :]])

    def __str__(self) -> str:
        *_, pod, last = ["", "", *self.path.split("/")]
        if last in IN_PODS:
            return f"{IN_PODS[last]} {pod}"
        return f"{VERBS.get(self.method, self.method)} {self.path}"


class ApiLink(http.client.HTTPConnection):
    """One TLS connection to the API server, through a proxy where there is one."""

    default_port = 443
    secured: ssl.SSLSocket

    def __init__(self, access: Access, context: ssl.SSLContext, version: int) -> None:
        address = urlsplit(access.server)
        self._name, self._context, self.version = access.server_name or address.hostname or "", context, version
        host, port = address.hostname or "", address.port or 443
        proxy = access.proxy or _proxy(host)
        if not proxy:
            super().__init__(host, port, timeout=CONNECT_S)
            return
        by_way = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        super().__init__(by_way.hostname or "", by_way.port or 3128, timeout=CONNECT_S)
        secret = f"{unquote(by_way.username)}:{unquote(by_way.password or '')}" if by_way.username else ""
        shown = {"Proxy-Authorization": f"Basic {b64encode(secret.encode()).decode()}"} if secret else {}
        self.set_tunnel(host, port, shown)

    def connect(self) -> None:
        """Connect, and notice later where the other side is gone without a word."""
        super().connect()
        plain: socket.socket = self.sock
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        try:
            self.sock = self.secured = self._context.wrap_socket(plain, server_hostname=self._name)
        except BaseException:
            plain.close()
            raise

    def is_usable(self) -> bool:
        """It waits for a request: what could be read on it now would only be the end of it."""
        if self.sock is None:
            return False
        if hasattr(select, "poll"):
            waiting = select.poll()
            waiting.register(self.sock, select.POLLIN)
            return not waiting.poll(0)
        return not select.select([self.sock], [], [], 0)[0]


def _proxy(host: str) -> str:
    proxy = getproxies().get("https", "")
    return "" if not proxy or proxy_bypass(host) else proxy


class ApiRequests:
    """Sends requests for any number of threads; a connection serves one of them at a time and is then used again."""

    def __init__(self, access: Access) -> None:
        self.login = Login(access)
        self._prefix = urlsplit(access.server).path.rstrip("/")
        self._idle: list[ApiLink] = []
        self._allowed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that nobody uses at the moment."""
        with self._lock:
            left, self._idle = self._idle, []
        for link in left:
            link.close()

    def ask(self, request: ApiRequest) -> tuple[bytes, bool]:
        """The answer, and whether an earlier try of the same request may have been received, too.

        Raises ApiError where the server refuses, and ClusterError where it cannot be asked.
        """
        target, perhaps, renewed = request.target, False, False
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            credential, link = self._take()
            sent = False
            try:
                if link.sock is None:
                    link.connect()
                link.sock.settimeout(ANSWER_S)
                sent = True
                answer = self._send(link, request, target, credential)
                body = answer.read(ANSWER_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                link.close()
                if last or is_final(error) or (sent and not request.repeatable):
                    raise unreachable(self.login.access, request, error) from error
                perhaps = perhaps or sent
                self._pause(attempt)
                continue
            if len(body) > ANSWER_BYTES:
                link.close()
                raise ClusterError(f"the answer to `{request}` has more than {ANSWER_BYTES >> 20} MiB")
            self._give_back(link)
            if answer.status < 400:
                self._allowed.add(request.right)
                return body, perhaps
            if answer.status == 401 and not renewed and self.login.refused(credential):
                renewed = True
                continue
            forgetful = answer.status in FORGETFUL and request.right in self._allowed
            if last or not (forgetful or may_repeat(request, answer.status)):
                refused = refusal(request, answer.status, body)
                refused.repeated = perhaps
                raise refused
            perhaps = perhaps or answer.status in UNSURE
            self._pause(attempt, answer.getheader("Retry-After", ""))
        raise AssertionError("the last try returns or raises")

    def open(self, request: ApiRequest, silent_s: float, extra: Mapping[str, str] | None = None) -> ApiAnswer:
        """An answer that is read bit by bit on a connection of its own; it may be silent for so long.

        It is asked for once, and once more with a new credential. Raises ApiError and ClusterError.
        """
        for again in (True, False):
            credential, version, context = self.login.current()
            link = ApiLink(self.login.access, context, version)
            try:
                link.connect()
                link.sock.settimeout(silent_s)
                answer = self._send(link, request, request.target, credential, extra)
                if answer.status < 400:
                    return ApiAnswer(request, link, answer)
                body = answer.read(ANSWER_BYTES)
            except (OSError, http.client.HTTPException) as error:
                link.close()
                raise unreachable(self.login.access, request, error) from error
            except BaseException:
                link.close()
                raise
            link.close()
            if not (again and answer.status == 401 and self.login.refused(credential)):
                raise refusal(request, answer.status, body)
        raise AssertionError("the second try returns or raises")

    def _send(
        self,
        link: ApiLink,
        request: ApiRequest,
        target: str,
        credential: Credential,
        extra: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        link.putrequest(request.method, self._prefix + target, skip_accept_encoding=True)
        shown = headers(self.login.access, credential)
        shown += [("Accept", "application/json, */*"), ("User-Agent", "jupyter-hyperpod"), *(extra or {}).items()]
        if request.body is not None:
            shown += [("Content-Type", request.content_type), ("Content-Length", str(len(request.body)))]
        for name, value in shown:
            link.putheader(name, value)
        link.endheaders(request.body)
        return link.getresponse()

    def _take(self) -> tuple[Credential, ApiLink]:
        credential, version, context = self.login.current()
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return credential, ApiLink(self.login.access, context, version)
            if link.version == version and link.is_usable():
                return credential, link
            link.close()

    def _give_back(self, link: ApiLink) -> None:
        with self._lock:
            if link.sock is not None and len(self._idle) < IDLE_MOST:
                self._idle.append(link)
                return
        link.close()

    def _pause(self, attempt: int, asked: str = "") -> None:
        pause_s = PAUSE_S * 2**attempt
        if asked.isdecimal():
            pause_s = max(pause_s, float(asked[:6]))
        time.sleep(min(pause_s, LONGEST_PAUSE_S))


class ApiAnswer:
    """An answer that is not at its end yet. `interrupt` from another thread ends a read that waits."""

    def __init__(self, request: ApiRequest, link: ApiLink, answer: http.client.HTTPResponse) -> None:
        self._request, self.link, self.answer = request, link, answer
        self.socket = link.secured

    def read(self) -> bytes:
        """What has come, at least a byte; b"" at the end. Raises OSError or HTTPException where it is cut off."""
        return self.answer.read1(1 << 16)

    def interrupt(self) -> None:
        """Let a read in another thread return."""
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection up."""
        self.answer.close()
        self.link.close()
        self.socket.close()


def may_repeat(request: ApiRequest, status: int) -> bool:
    """Whether a request that was answered with this status may succeed at another try, and does no harm."""
    return status in BUSY or (status in UNSURE and request.repeatable)


def is_final(error: Exception) -> bool:
    """Trying again would not help."""
    return isinstance(error, (ssl.SSLCertVerificationError, http.client.InvalidURL, UnicodeError))


def unreachable(access: Access, request: ApiRequest, error: Exception) -> ClusterError:
    """Why the server could not be asked, as a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ClusterError(
            f"{access.server} shows a certificate that is not to be trusted: {error.verify_message}. Nothing was sent; "
            f"compare the certificate authority in {access.source} with that of the cluster"
        )
    if isinstance(error, TimeoutError):
        said = f"no answer within {ANSWER_S:g} s"
    else:
        said = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return ClusterError(f"{access.server} cannot be reached to {request}: {cut(said, 300)}; is the cluster up?")


def refusal(request: ApiRequest, status: int, body: bytes) -> ApiError:
    """What the server said, as an error."""
    reason, message = parse_status(body)
    said = message or reason or http.client.responses.get(status, "no reason is given")
    what = remedy(message) or REMEDIES.get(status, "")
    told = f"the API server refuses to {request} ({status}): {cut(said, 600)}"
    return ApiError(status, reason, f"{told}; {what}" if what else told)


def parse_status(body: bytes) -> tuple[str, str]:
    """Reason and message of the API's object of kind Status; where it is none, its beginning is the message."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "", " ".join(body[:600].decode(errors="replace").split())
    if not isinstance(found, dict):
        return "", ""
    return str(found.get("reason") or ""), " ".join(str(found.get("message") or "").split())
