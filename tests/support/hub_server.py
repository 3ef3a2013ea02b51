"""The part of the Hugging Face Hub's HTTP interface that huggingface_hub uses to fetch files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

PIECE = 64 * 1024


class Hub:
    """Repositories by ``models/org/name`` or ``datasets/org/name``: commits of branches, with files."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.gated: set[str] = set()
        self.fetched: Counter[str] = Counter()  # whole or partial bodies sent, by file
        self.tokens: set[str] = set()
        self.go = threading.Event()  # bodies wait for it after their first piece
        self.go.set()
        self.began = threading.Event()  # a first piece was sent

    def commit(self, repository: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Put files on a branch; return the commit."""
        sha = hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()
        self.commits[repository, sha] = files
        self.branches[repository, branch] = sha
        return sha

    def resolve(self, repository: str, revision: str) -> str | None:
        """The commit of a branch or a commit."""
        if (repository, revision) in self.commits:
            return revision
        return self.branches.get((repository, revision))


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def as_json(self, value: object) -> None:
            text = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def answer(self, body: bool) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            listing = parts[0] == "api"
            parts = parts[1:] if listing else parts
            kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
            repository, (verb, revision, *rest) = f"{kind}/{parts[0]}/{parts[1]}", parts[2:]
            if not any(repository == name for name, _ in hub.commits):
                return self.refuse(404, "RepoNotFound")
            if repository in hub.gated and not listing:
                return self.refuse(403, "GatedRepo")
            commit = hub.resolve(repository, revision)
            if commit is None:
                return self.refuse(404, "RevisionNotFound")
            files = hub.commits[repository, commit]
            if verb == "revision":
                return self.as_json({"id": "/".join(parts[:2]), "sha": commit, "siblings": [], "private": False})
            if verb == "tree":
                about = [(path, content, hashlib.sha1(content).hexdigest()) for path, content in files.items()]
                return self.as_json([{"type": "file", "path": p, "size": len(c), "oid": oid} for p, c, oid in about])
            if (path := "/".join(rest)) not in files:
                return self.refuse(404, "EntryNotFound")
            return self.send_file(path, files[path], commit, body)

        def send_file(self, path: str, content: bytes, commit: str, body: bool) -> None:
            first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            self.send_response(206 if self.headers.get("Range") else 200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Accept-Ranges", "bytes")
            if self.headers.get("Range"):
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            if body:
                hub.fetched[path] += 1
                for at in range(first, len(content), PIECE):
                    self.wfile.write(content[at : at + PIECE])
                    hub.began.set()
                    hub.go.wait(60)

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the client was killed
                self.close_connection = True

    return Handler


@contextmanager
def serving() -> Iterator[tuple[Hub, str]]:
    """A Hub and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        hub.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
