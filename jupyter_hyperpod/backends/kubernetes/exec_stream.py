"""Follows what a command in a pod prints, as it comes, through one websocket to the API server."""

from __future__ import annotations

import os
import socket
from base64 import b64encode
from collections.abc import Iterator

from ...core.errors import ClusterError
from . import websocket
from .api_requests import ApiRequest, ApiRequests
from .exec_session import CHUNK_BYTES, check_upgrade, cluster_errors, early, upgrade_headers

ERRORS_KEPT = 2000


def follow_command(requests: ApiRequests, request: ApiRequest, stdin: bytes, silent_s: float) -> Iterator[bytes]:
    """What the command prints, until it ends. Raises ApiError where it is refused, and ClusterError where the
    connection is cut, where nothing comes for ``silent_s``, and where the command fails."""
    nonce = b64encode(os.urandom(16)).decode()
    answer = requests.open(request, silent_s, upgrade_headers(nonce))
    errors = b""
    with cluster_errors(requests, request, answer):
        check_upgrade(answer, request, nonce)
        link: socket.socket = answer.socket
        for start in range(0, len(stdin), CHUNK_BYTES):
            piece = bytes((websocket.SENT,)) + stdin[start : start + CHUNK_BYTES]
            link.sendall(websocket.frame(websocket.BINARY, piece, os.urandom(4)))
        messages = websocket.Messages()
        link.setblocking(False)
        data = early(answer.answer)
        link.settimeout(silent_s)
        while True:
            for kind, payload in messages.feed(data):
                if kind == websocket.PING:
                    link.sendall(websocket.frame(websocket.PONG, payload, os.urandom(4)))
                elif kind == websocket.CLOSE:
                    return
                elif payload[:1] == bytes((websocket.OUTPUT,)):
                    yield payload[1:]
                elif payload[:1] == bytes((websocket.ERRORS,)):
                    errors = (errors + payload[1:])[-ERRORS_KEPT:]
                elif payload[:1] == bytes((websocket.STATUS,)):
                    status, why = websocket.exit_status(payload[1:])
                    if status != 0:
                        said = errors.decode(errors="replace").strip() or why
                        raise ClusterError(f"could not {request} to its end: {said}")
                    return
            data = link.recv(1 << 16)
            if not data:
                raise ClusterError(f"could not {request} to its end: the connection was cut")
