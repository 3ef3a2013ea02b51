"""The check of links to other sites: what counts as a link, and what a real server's answers come to."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

TREE = Path(__file__).resolve().parents[1]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("links_of_the_pages", TREE / "docs" / "links.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


links = load()


class Site(BaseHTTPRequestHandler):
    """Answers by its path; at /late only once the test is over."""

    over = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/late":
            self.over.wait(30)
            return
        status = {"/there": 200, "/moved": 301, "/shut": 403}.get(self.path, 404)
        self.send_response(status)
        if status == 301:
            self.send_header("Location", "/there")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    Site.over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        Site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_links_are_found_with_their_lines_and_examples_are_none(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "notebooks").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text(
        "[one](https://one.org/a?b=c#d), <https://two.org/>.\n"
        "`https://code.org` and http://localhost:8888 and https://hub.example.com/x\n"
        "```bash\ncurl https://fenced.org\n```\n"
        "See https://three.org/path. [again](https://one.org/a?b=c#d)\n"
    )
    cells = [
        {"cell_type": "code", "source": ["'https://code.org'"]},
        {"cell_type": "markdown", "source": ["text\n", "[four](https://four.org)"]},
    ]
    (tmp_path / "notebooks" / "book.ipynb").write_text(json.dumps({"cells": cells}, indent=1))
    found = [link for path in links.pages(tmp_path) for link in links.links(path, tmp_path)]
    assert [(link.path, link.line, link.url) for link in found] == [
        ("docs/page.md", 1, "https://one.org/a?b=c#d"),
        ("docs/page.md", 1, "https://two.org/"),
        ("docs/page.md", 6, "https://three.org/path"),
        ("docs/page.md", 6, "https://one.org/a?b=c#d"),
        ("notebooks/book.ipynb", 13, "https://four.org"),
    ]


def test_the_pages_of_the_project_have_links() -> None:
    found = [link for path in links.pages(TREE) for link in links.links(path, TREE)]
    assert any(link.url.startswith("https://docs.vllm.ai") and link.path == "docs/serving.md" for link in found)


def test_each_broken_link_is_named_with_its_place(site: str) -> None:
    paths = ("there", "moved", "shut", "gone", "late")
    found = [links.Link("docs/a.md", line, f"{site}/{path}") for line, path in enumerate(paths, 1)]
    told, whole = links.check([*found, links.Link("docs/b.md", 7, f"{site}/gone")], timeout_s=4.0)
    assert not whole
    assert told == [
        f"docs/a.md:2: moved: {site}/moved leads to {site}/there",
        f"docs/a.md:3: not verified: {site}/shut answers with 403",
        f"docs/a.md:4: broken: {site}/gone answers with 404",
        f"docs/b.md:7: broken: {site}/gone answers with 404",
        f"docs/a.md:5: broken: {site}/late no answer within 4 s",
        "5 addresses asked: 2 broken, 1 not verified",
    ]


def test_all_is_well(site: str) -> None:
    assert links.check([links.Link("a.md", 1, f"{site}/there")]) == (
        ["1 addresses asked: 0 broken, 0 not verified"],
        True,
    )


def test_without_a_network_nothing_is_said_of_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    told, whole = links.check(
        [links.Link("a.md", 1, f"http://127.0.0.1:{port}/"), links.Link("b.md", 1, "http://x.invalid/")]
    )
    assert whole and told == ["not verified: no network (none of 2 addresses has answered)"]
