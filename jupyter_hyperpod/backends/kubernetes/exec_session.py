"""Runs a command in a pod: its input, output and exit status travel through one websocket to the API server."""

from __future__ import annotations

import http.client
import os
import selectors
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

from ...core.errors import ClusterError, ProtocolError
from . import websocket
from .api_requests import ApiAnswer, ApiError, ApiRequest, ApiRequests, unreachable

UPGRADE_S = 30.0
OUTPUT_BYTES = 64 << 20
CHUNK_BYTES = 32 << 10
AFTER_STATUS_S = 1.0
SWITCHED = 101


def run_command(
    requests: ApiRequests, request: ApiRequest, stdin: bytes, deadline_s: float
) -> tuple[int, bytes, bytes]:
    """Exit status, output and errors of a command. Raises ApiError and ClusterError."""
    nonce = b64encode(os.urandom(16)).decode()
    answer = requests.open(request, min(max(deadline_s - time.monotonic(), 0.1), UPGRADE_S), upgrade_headers(nonce))
    with cluster_errors(requests, request, answer):
        protocol = check_upgrade(answer, request, nonce)
        session = ExecSession(answer, stdin, protocol, str(request))
        session.run(deadline_s)
    if not session.told:
        raise ClusterError(f"could not {request}: the connection was cut before the exit status was known")
    status, why = websocket.exit_status(bytes(session.told))
    if status is None:
        raise ClusterError(f"could not {request}: {why}")
    return status, bytes(session.output), bytes(session.errors)


@contextmanager
def cluster_errors(requests: ApiRequests, request: ApiRequest, answer: ApiAnswer) -> Iterator[None]:
    """Close the connection in the end; what breaks on it is raised as ClusterError."""
    try:
        yield
    except ProtocolError as error:
        raise ClusterError(f"could not {request}: {error}") from error
    except OSError as error:
        raise unreachable(requests.login.access, request, error) from error
    finally:
        answer.close()


def upgrade_headers(nonce: str) -> dict[str, str]:
    """What asks for a websocket; ``nonce`` is random."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": nonce,
        "Sec-WebSocket-Protocol": f"{websocket.V5}, {websocket.V4}",
    }


def check_upgrade(answer: ApiAnswer, request: ApiRequest, nonce: str) -> str:
    """The protocol that the server speaks from now on."""
    shown = answer.answer
    if shown.status != SWITCHED or shown.getheader("Sec-WebSocket-Accept", "").strip() != websocket.accepted(nonce):
        raise ApiError(shown.status, "", f"could not {request}: no websocket was opened; is a proxy in between?")
    return shown.getheader("Sec-WebSocket-Protocol", "").strip()


class ExecSession:
    """One command: sends its input and takes its output, without waiting for either alone."""

    def __init__(self, answer: ApiAnswer, stdin: bytes, protocol: str, what: str) -> None:
        self._what = what
        self.output, self.errors, self.told = bytearray(), bytearray(), bytearray()
        self._socket = answer.socket
        self._socket.setblocking(False)
        self._messages = websocket.Messages()
        self._closed = False
        self._waiting = bytearray()  # to be sent
        for start in range(0, len(stdin), CHUNK_BYTES):
            self._send(websocket.BINARY, bytes((websocket.SENT,)) + stdin[start : start + CHUNK_BYTES])
        if stdin and protocol == websocket.V5:
            self._send(websocket.BINARY, bytes((websocket.CLOSED, websocket.SENT)))
        self._take(early(answer.answer))

    def run(self, deadline_s: float) -> None:
        """Go on until the server closes. Raises ClusterError and OSError.

        Newer servers may send the exit status before the last of the output, so it is not the end.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._closed:
                wanted = self._step()
                if self._closed or not wanted:
                    continue
                left_s = deadline_s - time.monotonic()
                if self.told:
                    left_s = min(left_s, AFTER_STATUS_S)
                elif left_s <= 0:
                    raise ClusterError(f"could not {self._what} to its end: it has not ended in time and may go on")
                selector.modify(self._socket, wanted)
                if not selector.select(max(left_s, 0)) and self.told:
                    return

    def _step(self) -> int:
        """Send and take what is possible at once; return what to wait for, 0 where nothing has to be waited for."""
        wanted, moved = selectors.EVENT_READ, False
        try:
            if self._waiting:
                count = self._socket.send(self._waiting[:CHUNK_BYTES])
                del self._waiting[:count]
                moved = True
        except ssl.SSLWantWriteError:
            wanted |= selectors.EVENT_WRITE
        except ssl.SSLWantReadError:
            pass
        try:
            data = self._socket.recv(1 << 16)
            self._closed = self._closed or not data
            self._take(data)
            moved = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            wanted |= selectors.EVENT_WRITE
        return 0 if moved else wanted

    def _send(self, kind: int, payload: bytes) -> None:
        self._waiting += websocket.frame(kind, payload, os.urandom(4))

    def _take(self, data: bytes) -> None:
        for kind, payload in self._messages.feed(data):
            if kind == websocket.CLOSE:
                self._closed = True
                return
            if kind == websocket.PING:
                self._send(websocket.PONG, payload)
            elif kind != websocket.PONG and payload:
                parts = {websocket.OUTPUT: self.output, websocket.ERRORS: self.errors, websocket.STATUS: self.told}
                if (part := parts.get(payload[0])) is not None:
                    part += payload[1:]
                if len(self.output) + len(self.errors) > OUTPUT_BYTES:
                    raise ClusterError(f"the command has printed more than {OUTPUT_BYTES >> 20} MiB")


def early(answer: http.client.HTTPResponse) -> bytes:
    """What came together with the head of the answer and was read with it."""
    try:
        return answer.fp.read1(1 << 16) if answer.fp is not None else b""
    except ssl.SSLWantReadError:
        return b""
