"""A small server with OpenAI's API, run as an engine: what it says is a function of its model's file and the question.

``python openai_server.py MODEL --port P`` has completions, chat and embeddings, whole or streamed, models, health and
metrics. A word of an answer takes ``--pause`` seconds. ``--plain`` answers as old servers do, which end by closing the
connection. With ``--helper`` it has a child in a session of its own; ``--slow FILE`` is ready when that file is gone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMES = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat.completion"}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    options: argparse.Namespace
    lock = threading.Lock()
    running = 0

    def log_message(self, *_: Any) -> None:
        """Nothing is written about requests."""

    def words(self, record: dict[str, Any]) -> Iterator[str]:
        """The words of an answer, one after the other."""
        asked = json.dumps(record.get("prompt", record.get("messages")))
        weights = Path(self.options.model).read_text()
        for number in range(int(record.get("max_tokens", 4))):
            time.sleep(self.options.pause)
            yield hashlib.sha256(f"{weights}\0{asked}\0{number}".encode()).hexdigest()[:6] + " "

    def do_GET(self) -> None:
        """Health, models and metrics."""
        if self.path == "/health":
            late = bool(self.options.slow) and os.path.exists(self.options.slow)
            self.answer({"status": "loading" if late else "ok"}, 503 if late else 200)
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": self.options.name, "object": "model"}]})
        elif self.path == "/metrics":
            text = f'# TYPE x gauge\nvllm:num_requests_running{{model="a b",kind="}}"}} {Handler.running}.0\n'
            self.send(200, "text/plain", (text + 'vllm:num_requests_waiting{model="m"} 0\n').encode())
        else:
            self.answer({"error": {"message": "nothing here"}}, 404)

    def do_POST(self) -> None:
        """Completions and embeddings."""
        record = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization"):
            self.answer({"error": {"message": "the token of the clients has come here"}}, 500)
        elif self.path == "/v1/embeddings":
            digest = hashlib.sha256(str(record["input"]).encode()).digest()
            data = [{"object": "embedding", "index": 0, "embedding": [byte / 255 for byte in digest[:4]]}]
            self.answer({"object": "list", "data": data, "model": record.get("model")})
        elif "n" in record:
            self.answer({"error": {"message": "n is not for this server"}}, 422)
        elif "busy" in record:
            self.answer({"error": {"message": "too much to do"}}, 503)
        else:
            with Handler.lock:
                Handler.running += 1
            try:
                (self.stream if record.get("stream") else self.whole)(record)
            finally:
                with Handler.lock:
                    Handler.running -= 1

    def piece(self, record: dict[str, Any], word: str, last: bool = False) -> dict[str, Any]:
        """An answer with this text."""
        text = {"text": word} if self.path == "/v1/completions" else {"delta": {"content": word}}
        if not record.get("stream") and "delta" in text:
            text = {"message": {"role": "assistant", "content": word}}
        choice = text | {"index": 0, "finish_reason": "length" if last else None}
        facts = {"id": "x", "created": 0, "model": record.get("model"), "system_fingerprint": f"pid-{os.getpid()}"}
        return facts | {"object": NAMES[self.path], "choices": [choice]}

    def whole(self, record: dict[str, Any]) -> None:
        """The answer as JSON."""
        self.answer(self.piece(record, "".join(self.words(record)), True))

    def stream(self, record: dict[str, Any]) -> None:
        """The answer as events, one per word."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        plain = self.options.plain
        self.send_header(*(("Connection", "close") if plain else ("Transfer-Encoding", "chunked")))
        self.end_headers()
        for event in self.events(record):
            content = event.encode()
            self.wfile.write(content if plain else b"%x\r\n%s\r\n" % (len(content), content))
        if not plain:
            self.wfile.write(b"0\r\n\r\n")

    def events(self, record: dict[str, Any]) -> Iterator[str]:
        """One per word, and the end."""
        for word in self.words(record):
            yield f"data: {json.dumps(self.piece(record, word))}\n\n"
        yield "data: [DONE]\n\n"

    def answer(self, record: Any, status: int = 200) -> None:
        """Send JSON."""
        self.send(status, "application/json", json.dumps(record).encode())

    def send(self, status: int, kind: str, content: bytes) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if self.options.plain:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="m")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--helper", action="store_true")
    parser.add_argument("--slow", default="")
    parser.add_argument("--fail", default="")
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    if options.fail:
        sys.exit(options.fail)
    Path(options.model).read_text()
    if options.helper:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Handler.options = options
    Handler.protocol_version = "HTTP/1.0" if options.plain else "HTTP/1.1"
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
