"""A small HTTP server of ranges, in a thread: what a test needs to say exactly how an answer is wrong."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.loopback_server import LoopbackServer

_RANGE = re.compile(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)")


@dataclass
class Request:
    """What was asked: the number of the request, its path, its bytes ``[begin, end)``, its whole head."""

    number: int
    path: str
    begin: int
    end: int
    head: bytes


@dataclass
class Answer:
    """What is answered: by default what a correct server says. `cut` sends so many bytes of the body and closes."""

    status: int = 206
    body: bytes = b""
    fields: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


Misbehaviour = Callable[[Request, Answer], Answer | None]


class RangeServer(LoopbackServer):
    """Serves `objects` (path -> content) on loopback; `misbehave` may replace any answer, None closes unanswered."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self.requests: list[Request] = []
        self.sent = 0
        self.misbehave: Misbehaviour = lambda request, answer: answer
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request after another until the client leaves."""
        waiting = b""
        while True:
            while b"\r\n\r\n" not in waiting:
                if not (content := connection.recv(65536)):
                    return
                waiting += content
            head, _, waiting = waiting.partition(b"\r\n\r\n")
            if not self._answer(connection, head):
                return

    def _answer(self, client: socket.socket, head: bytes) -> bool:
        path = head.split(b" ", 2)[1].decode()
        content = self.objects.get(path)
        match = _RANGE.search(head)
        begin, end = (int(match[1]), int(match[2]) + 1) if match else (0, 2**63)
        with self._lock:
            request = Request(len(self.requests), path, begin, end, head)
            self.requests.append(request)
        answer = self.misbehave(request, correct(content, begin, end))
        if answer is None:
            return False
        fields = {"Content-Length": str(len(answer.body)), **answer.fields}
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in fields.items() if value)]
        body = answer.body if answer.cut is None else answer.body[: answer.cut]
        with self._lock:
            self.sent += len(body)
        client.sendall("\r\n".join([*lines, "\r\n"]).encode() + body)
        return answer.cut is None


def correct(content: bytes | None, begin: int, end: int) -> Answer:
    """What a correct server answers."""
    if content is None:
        return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
    size = len(content)
    if begin >= size:
        return Answer(416, b"", {"Content-Range": f"bytes */{size}"})
    body = content[begin:end]
    return Answer(206, body, {"Content-Range": f"bytes {begin}-{begin + len(body) - 1}/{size}", "ETag": '"one"'})


@contextmanager
def serving(objects: dict[str, bytes]) -> Iterator[RangeServer]:
    """A server for the time of a with block."""
    server = RangeServer(objects)
    try:
        yield server
    finally:
        server.close()
