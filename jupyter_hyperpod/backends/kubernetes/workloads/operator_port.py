"""The first program of a pod of HyperPod's training operator: it waits for the start, and then runs a node's program.

    python -m jupyter_hyperpod.backends.kubernetes.workloads.operator_port PROGRAM ARGUMENT…

The operator's requests are not signed, so every pod of the cluster may send them. None of them can end the program or
change it: a start lets it begin, once, and the rest is only noted. Its pod ends it, and who may delete that is a
matter of rights.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, ClassVar

from ....core.errors import ClusterError, ProtocolError
from ....system.diagnostics import note
from .protocol import PORT, OperatedProgram

PROCESS = Path("/dev/shm/hyperpod.pid")  # as `manifests.PROCESS` has it
NOTED_S = 60.0  # how long the operator may take to note that the program has ended
SILENT_S = 10.0  # a connection without a request is closed
LIMIT_BYTES = 1 << 16  # of a request
SIGNALS_S = 1.0  # a signal that comes just before a wait is seen at its end
AT_ONCE = 16  # connections; whoever comes beyond that is sent away


class OperatorPort:
    """State of one pod's port; `run` is its whole life."""

    def __init__(self, words: Sequence[str], process: Path = PROCESS, noted_s: float = NOTED_S) -> None:
        self._words, self._process, self._noted_s = list(words), process, noted_s
        self.program, self.changed = OperatedProgram(), threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._leaves = False  # the pod is being deleted, and nobody asks any more

    def run(self, port: int = PORT) -> int:
        """Answer the operator until the program has ended and the operator knows; the exit status."""
        signal.signal(signal.SIGTERM, self._on_signal)
        with _server(self, port) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            note(f"waiting for HyperPod's training operator to start this node (port {port})")
            with self.changed:
                while not self.program.wanted:
                    self.changed.wait(SIGNALS_S)
            status = self._run_program()
            if status == 0 and not self._leaves:
                with self.changed:
                    self.program.completed()
                    self.changed.wait_for(lambda: self.program.over, self._noted_s)
            server.shutdown()
        return _exit_status(status)

    def obey(self, path: str, request: object) -> object:
        """What the answer to a request is, None for an empty one.

        Raises KeyError for another path, ProtocolError for a request that is none, ClusterError where it is refused.
        """
        with self.changed:
            match path:
                case "/start":
                    self.program.start(request)
                    self.changed.notify_all()
                case "/update":
                    self.program.update(request)
                    return self.program.told()
                case "/stop":
                    self.program.stop()
                case "/shutdown":
                    if not self.program.shut_down():
                        raise ClusterError("the program runs; delete the pod to end it")
                    self.changed.notify_all()
                case _:
                    raise KeyError(path)
        return None

    def _run_program(self) -> int:
        self._child = subprocess.Popen(self._words)
        self._process.write_text(f"{self._child.pid}\n")  # signals are for the program
        while True:
            with suppress(subprocess.TimeoutExpired):
                return self._child.wait(SIGNALS_S)

    def _on_signal(self, number: int, _: object = None) -> None:
        self._leaves = True
        if self._child is None:
            raise SystemExit(128 + number)
        self._child.send_signal(number)
        if self._child.returncode is not None:
            raise SystemExit(_exit_status(self._child.returncode))


def _exit_status(returned: int) -> int:
    """As shells tell it: 128 and the number of a signal."""
    return 128 - returned if returned < 0 else returned


class _Requests(BaseHTTPRequestHandler):
    """Answers the operator; see `protocol`."""

    protocol_version = "HTTP/1.1"
    timeout = SILENT_S
    asked: ClassVar[OperatorPort]

    def do_GET(self) -> None:
        if self.path == "/status":
            with self.asked.changed:
                told = self.asked.program.told()
            self._answer(HTTPStatus.OK, told)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such path")

    def do_POST(self) -> None:
        try:
            answer = self.asked.obey(self.path, self._request())
        except KeyError:
            self._refuse(HTTPStatus.NOT_FOUND, "no such path")
        except ProtocolError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except ClusterError as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))
        else:
            self._answer(HTTPStatus.OK, answer)

    def _request(self) -> object:
        """The body, None for none. Raises ProtocolError."""
        told = self.headers.get("Content-Length") or "0"
        if not (told.isascii() and told.isdecimal()) or len(told) > 9 or int(told) > LIMIT_BYTES:
            self.close_connection = True
            raise ProtocolError(f"the request has {told[:20]!r} bytes")
        content = self.rfile.read(int(told))
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise ProtocolError("the request is no JSON") from None

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, {"detail": why})

    def _answer(self, status: HTTPStatus, told: object) -> None:
        content = b"" if told is None else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: object) -> None:
        """Nothing: the operator asks every few seconds."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    places = threading.BoundedSemaphore(AT_ONCE)
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        """Take both families, and ask nobody for this machine's name: a pod may wait long for that."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it beside others, if there are not too many."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever has gone meanwhile is none of the program's business."""


def _server(asked: OperatorPort, port: int) -> _Server:
    return _Server(("", port), type("_OperatorRequests", (_Requests,), {"asked": asked}))


def main() -> int:
    """Entry point."""
    if len(sys.argv) < 2:
        print(
            "usage: python -m jupyter_hyperpod.backends.kubernetes.workloads.operator_port PROGRAM ARGUMENT…",
            file=sys.stderr,
        )
        return 2
    with suppress(KeyboardInterrupt):
        return OperatorPort(sys.argv[1:]).run()
    return 130


if __name__ == "__main__":
    sys.exit(main())
