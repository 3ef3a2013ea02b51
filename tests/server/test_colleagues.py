"""A colleague's own Jupyter server, of another user of the system, on the store that its owner shares."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.cells import train
from tests.server.client import Client
from tests.storage.people import OPERATOR, OWNER, READER
from tests.storage.team import NAMES, Team, needs_root, team_in
from tests.support import free_port

ROOT = "jupyter_hyperpod/api/v1"
TOKEN = "the same for everybody"
END_S = 60.0
SHARED_FACTS = ("id", "name", "state", "reason", "step", "world_size", "generation", "incidents", "ended_s")

pytestmark = [pytest.mark.slow, needs_root]


class Server:
    """The Jupyter server of one person, whose configuration names the store of another."""

    def __init__(self, team: Team, uid: int) -> None:
        self.port, home = free_port(), team.home(uid)
        others = ("jupyterlab", "jupyter_lsp", "notebook_shim", "jupyter_server_terminals")
        extensions = {"jupyter_hyperpod": True} | dict.fromkeys(others, False)
        server = {"jpserver_extensions": extensions, "open_browser": False, "port": self.port, "root_dir": str(home)}
        config = home / "config.json"
        config.write_text(
            json.dumps(
                {
                    "ServerApp": server,
                    "IdentityProvider": {"token": TOKEN},
                    "HyperpodExtension": {"store": str(team.root)},
                }
            )
        )
        config.chmod(0o644)
        kept = {name: value for name, value in team.environment(uid).items() if not name.startswith(("JUPYTER", "JPY"))}
        self.log_file = team.place / f"{NAMES[uid]}.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                team.seen_as(uid, sys.executable, "-m", "jupyter_server", f"--config={config}"),
                env=kept, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ROOT}"

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()[-4000:]
        try:
            return self.ask("GET", "/settings")[0] == 200
        except OSError:
            return False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        url = f"{self.url}/stream".replace("http", "ws", 1)
        client = Client(await websocket_connect(HTTPRequest(url, headers={"Authorization": f"token {TOKEN}"})))
        try:
            yield client
        finally:
            client.close()
            while await client.socket.read_message() is not None:
                pass


@contextmanager
def serving(team: Team, uid: int, eventually: Callable[..., Any]) -> Iterator[Server]:
    server = Server(team, uid)
    try:
        eventually(server.answers, 60)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    with team_in(tmp_path) as team:
        yield team


@pytest.mark.timeout(300)
def test_a_colleagues_server_shows_the_same_job_and_acts_in_the_colleagues_name(
    team: Team, eventually: Callable[..., Any]
) -> None:
    cell = team.home(OWNER) / "cell.py"
    cell.write_text(train())
    cell.chmod(0o644)
    team.done(OWNER, "cluster", "start", "--nodes", "2", "--spares", "0")
    team.done(OWNER, "share", "team", "ops:operate")
    options = ["--nodes", "2", "--elastic", "1:2", "--name", "fit"]
    job_id = json.loads(team.done(OWNER, "submit", str(cell), *options, "--json"))["id"]
    with ExitStack() as servers:
        ada, bob, carol = (servers.enter_context(serving(team, uid, eventually)) for uid in (OWNER, OPERATOR, READER))
        for server, role in ((ada, "owner"), (bob, "operate"), (carol, "read")):
            assert server.ask("GET", f"/jobs/{job_id}")[1]["id"] == job_id
            found = server.ask("GET", "/sharing")[1]
            assert (found["owner"], found["role"]) == ("ada", role)
        status, refused = carol.ask("POST", f"/jobs/{job_id}/scale", {"target": 1})
        assert status == 403 and "ada" in refused["message"] and "hint" not in refused, refused
        views = asyncio.run(_watched(job_id, ada, bob, carol))
    first, *others = [{fact: view[fact] for fact in SHARED_FACTS} for view in views]
    assert first["state"] == "stopped" and "stopped by bob" in first["reason"]
    assert all(other == first for other in others), "all see one job"
    assert "stopped by bob" in team.done(OWNER, "describe", job_id)


async def _watched(job_id: str, ada: Server, bob: Server, carol: Server) -> list[dict[str, Any]]:
    """What each person's websocket has told of a job that bob makes smaller and stops."""
    async with ada.connected() as one, bob.connected() as two, carol.connected() as three:
        clients = (one, two, three)

        async def all_see(condition: Callable[[dict[str, Any]], object]) -> None:
            def seen(client: Client) -> Callable[[], object]:
                return lambda: condition(client.views.get(job_id, {}))

            await asyncio.gather(*(client.until(seen(client), END_S) for client in clients))

        for client in clients:
            await client.subscribe(job_id)
        await all_see(lambda view: view.get("world_size") == 2 and view["step"] > 0)
        answer = await asyncio.to_thread(bob.ask, "POST", f"/jobs/{job_id}/scale", {"target": 1})
        assert answer[0] == 202, answer
        await all_see(lambda view: view["world_size"] == 1)
        asked = [event for _, event in three.events if event["kind"] == "command.done"]
        assert asked and (asked[0]["data"]["kind"], asked[0]["data"]["by"]) == ("scale", "bob"), asked
        answer = await asyncio.to_thread(bob.ask, "POST", f"/jobs/{job_id}/stop", {})
        assert answer[0] == 202, answer
        await all_see(lambda view: view["state"] == "stopped" and view["ended_s"] is not None)
        return [client.views[job_id] for client in clients]
