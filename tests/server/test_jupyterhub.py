"""A real JupyterHub as docs/jupyterhub.md configures it: ada's server, which bob may read and carol may operate."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError

from jupyter_hyperpod.storage.journal import follow_commands
from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.cells import train
from tests.server.jupyter_hub import NAMED, PEOPLE, Browser, Hub, listening
from tests.server.test_api import FILE, UNKNOWN, operations, resource_of

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can become other users"),
]

READS = {("read", f"jupyter_hyperpod.{kind}") for kind in ("jobs", "cluster", "settings")}
OPERATES = READS | {("write", f"jupyter_hyperpod.{kind}") for kind in ("jobs", "faults")}
# what changes or shows more than jobs and the cluster: of JupyterLab's handlers some ask no authorizer
ELSEWHERE = [
    *(("POST", f"/api/{name}") for name in ("kernels", "sessions", "terminals", "shutdown", "contents")),
    *(("GET", f"/api/{name}") for name in ("kernels", "sessions", "terminals", "contents", "config/notebook")),
    *(
        ("GET", path)
        for path in ("/files/cell.py", "/nbconvert/html/cell.py", "/lsp/status", "/nbconvert/python/cell.py")
    ),
    *(("GET", f"/lab/api/{name}") for name in ("workspaces", "workspaces/default", "workspaces/auto-a", "extensions")),
    *(("PUT", path) for path in ("/api/contents/cell.py", "/api/config/notebook", "/lab/api/workspaces/default")),
    *(("DELETE", path) for path in ("/api/contents/cell.py", "/lab/api/workspaces/default", "/lab/api/build")),
    *(("POST", path) for path in ("/lab/api/extensions", "/lab/api/plugins", "/lab/api/build", "/api/contents/a")),
    ("PUT", "/lab/api/settings/@jupyterlab/shortcuts-extension:shortcuts"),
    ("PATCH", "/api/contents/cell.py"),
    ("PATCH", "/api/me"),
]
# without these JupyterLab does not start
PAGE = ["/lab", "/lab/api/settings", "/lab/api/settings?ids_only=true", "/lab/api/translations/en", "/api/status"]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    # not in pytest's own directory, which every other run of pytest closes again for other users
    with TemporaryDirectory(prefix="hub-") as place:
        hub = Hub(Path(place), f"hub-{secrets.token_hex(6)}")
        try:
            hub.begin()
            yield hub
        finally:
            hub.end()


@pytest.fixture(scope="module")
def people(hub: Hub) -> Iterator[dict[str, Browser]]:
    """Everybody has signed in; ada and bob have servers, and ada has a cluster."""
    found = {name: Browser(hub, name) for name in PEOPLE}
    with ThreadPoolExecutor() as pool:
        list(pool.map(Browser.start, (found["ada"], found["bob"])))
    status, cluster = found["ada"].api("POST", "ada", "/cluster/start", {"nodes": 2, "spares": 0})
    assert status == 200, cluster
    yield found
    for browser in found.values():
        browser.session.close()


@pytest.fixture
def bob(people: dict[str, Browser]) -> Iterator[Browser]:
    """Bob, whom ada has let in."""
    people["ada"].lets_in("bob")
    people["bob"].hub.wait(lambda: people["bob"].open("ada") == 200, 60)
    yield people["bob"]
    people["ada"].shuts_out("bob")


@pytest.fixture
def carol(people: dict[str, Browser]) -> Browser:
    """Carol, an assistant; she signs in to ada's server anew, for a restart ends what it has given her."""
    people["carol"].hub.wait(lambda: people["carol"].open("ada") == 200, 60)
    return people["carol"]


class Run:
    """A job of ada's, and what its journal says."""

    def __init__(self, job: JobStore) -> None:
        self.job, self.id = job, job.id

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in read_kinds(self.job.events, {kind})]

    def steps(self) -> int:
        return max((event["step"] for event in self.events("step.committed")), default=0)


@pytest.fixture
def run(hub: Hub, people: dict[str, Browser]) -> Iterator[Run]:
    cell = hub.cell("ada", train())
    said = hub.run("ada", "submit", str(cell), "--nodes", "2", "--elastic", "1:2", "--name", "fit", "--json")
    run = Run(Store(hub.store("ada")).job(json.loads(said)["id"]))
    hub.wait(lambda: run.steps() > 3, 60)
    yield run
    if run.events("job.state")[-1]["state"] != "stopped":
        hub.run("ada", "stop", run.id)
    hub.wait(lambda: run.events("job.state")[-1]["state"] == "stopped", 60)


def test_each_person_gets_what_the_scopes_say(
    openapi: dict[str, Any], people: dict[str, Browser], bob: Browser, carol: Browser
) -> None:
    """Each verb of each handler for the owner, a reader, an operator and a stranger; nothing is changed."""
    rights = {"ada": None, "bob": READS, "carol": OPERATES, "dan": set[tuple[str, str]]()}
    people["dan"].open("ada")
    wrong, tried = [], 0
    for name, allowed in rights.items():
        for method, path in operations(openapi):
            action = "read" if method == "GET" else "write"
            expected = allowed is None or (action, resource_of(path)) in allowed
            if path == "/stream":
                status = 200 if asyncio.run(_opens(people[name])) else 403
            else:
                body = None if method == "GET" else b"{"  # refused after the authorizer was asked
                status = people[name].api(method, "ada", path.format(id=UNKNOWN, path=FILE), body)[0]
            tried += 1
            if (status != 403) != expected:
                wrong.append((name, method, path, status))
    assert wrong == []
    assert tried == len(rights) * len(operations(openapi))


async def _opens(browser: Browser, origin: str = "") -> bool:
    try:
        async with browser.connected("ada", origin):
            return True
    except HTTPClientError as error:
        assert error.code == 403
        return False


def test_a_guest_gets_nothing_else_of_a_server(people: dict[str, Browser], bob: Browser, carol: Browser) -> None:
    for guest in (bob, carol):
        for path in PAGE:
            assert guest.ask("GET", f"/user/ada{path}").status_code == 200, path
        found = {(method, path): guest.ask(method, f"/user/ada{path}", b"{}").status_code for method, path in ELSEWHERE}
        assert {what: status for what, status in found.items() if status != 403} == {}
    assert people["dan"].open("ada") == 403


def test_each_person_has_a_server_and_a_store(hub: Hub, people: dict[str, Browser]) -> None:
    """A server listens at the one address that the Hub has given it."""
    for name in ("ada", "bob"):
        assert people[name].api("GET", name, "/settings")[1]["store"] == str(hub.store(name))
        (pid,) = hub.processes(name)
        assert [address.split(":")[0] for address in listening(pid)] == ["0100007F"]
    assert hub.store("ada").stat().st_uid == PEOPLE["ada"]


def test_a_reader_follows_and_an_operator_stops(hub: Hub, bob: Browser, carol: Browser, run: Run) -> None:
    for path, body in (("stop", {}), ("scale", {"target": 1}), ("fault", {"fault": "kill", "rank": 1})):
        status, answer = bob.api("POST", "ada", f"/jobs/{run.id}/{path}", body)
        assert (status, "not authorized to write" in answer["message"]) == (403, True)
    assert follow_commands(run.job.commands).poll() == []
    assert carol.api("POST", "ada", f"/jobs/{run.id}/scale", {"target": 1})[0] == 202
    assert asyncio.run(_sees_the_end(bob, carol, run)) == "stopped by carol (ada)"
    by = [command.data["by"] for command in follow_commands(run.job.commands).poll()]
    assert by == [{"user": "ada", "uid": PEOPLE["ada"], "identity": "carol"}] * 2
    assert [event["by"] for event in run.events("command.done")] == ["carol (ada)"] * 2
    assert "stopped by carol (ada)" in hub.run("ada", "describe", run.id)


async def _sees_the_end(reader: Browser, operator: Browser, run: Run) -> str:
    """What a reader is told of the end of a job that an operator stops."""
    async with reader.connected("ada") as client:
        await client.subscribe(run.id, "jobs")
        await client.until(lambda: client.views.get(run.id, {}).get("world_size") == 1, 60)
        path = f"/jobs/{run.id}/stop"
        assert (await asyncio.to_thread(operator.api, "POST", "ada", path, {}))[0] == 202
        await client.until(lambda: client.views[run.id]["state"] == "stopped", 60)
        await client.until(lambda: client.jobs and client.jobs[0]["state"] == "stopped")
        return str(client.views[run.id]["reason"])


@pytest.fixture
def named(hub: Hub, people: dict[str, Browser]) -> Iterator[str]:
    """A second server of ada's."""
    ada = people["ada"]
    before = len(hub.processes("ada"))
    ada.start(NAMED)
    yield f"ada/{NAMED}"
    assert ada.ask("DELETE", f"/hub/api/users/ada/servers/{NAMED}").status_code in (202, 204)
    hub.wait(lambda: len(hub.processes("ada")) == before, 60)


def test_a_named_server_shows_the_same_jobs_to_its_owner_and_to_whom_it_lets_in(
    hub: Hub, people: dict[str, Browser], carol: Browser, run: Run, named: str
) -> None:
    """`/user/ada/second/`: requests, the websocket, and a link to a job, for each as their scopes say."""
    ada, bob, place, link = people["ada"], people["bob"], named, f"?hyperpod-open=job%3A{run.id}"
    assert ada.api("GET", place, "/settings")[1]["store"] == str(hub.store("ada")), "all servers of a person have one"
    assert ada.api("GET", place, "/sharing")[1]["role"] == "owner"
    assert bob.open(place) == 403, "nobody has let bob into this server"
    ada.lets_in("bob", NAMED)
    hub.wait(lambda: bob.open(place) == 200, 60)
    hub.wait(lambda: carol.open(place) == 200, 60)
    for person, role in ((ada, "owner"), (bob, "read"), (carol, "operate")):
        page = person.follow(f"/user/{place}/lab{link}")
        assert page.status_code == 200 and page.url.endswith(f"/user/{place}/lab{link}"), page.url
        assert json.loads(_page_config(page.text))["baseUrl"] == f"/user/{place}/", "of which the panel's requests are"
        assert person.api("GET", place, f"/jobs/{run.id}")[1]["id"] == run.id
        found = person.api("GET", place, "/sharing")[1]
        assert (found["owner"], found["role"], found["person"]) == ("ada", role, person.name)
        assert asyncio.run(_follow(person, run, {}, place))["state"] == "running"
        changed = person.api("POST", place, "/sharing/change", {"read": "no-such-group", "operate": ""})
        assert changed[0] == (400 if person is ada else 403)
    assert bob.follow(f"/hub/user-redirect/lab{link}").url.endswith(f"/user/bob/lab{link}"), "a server of one's own"
    assert bob.api("POST", place, f"/jobs/{run.id}/stop", {})[0] == 403
    assert carol.api("POST", place, f"/jobs/{run.id}/scale", {"target": 1})[0] == 202
    assert bob.open("ada") == 403, "a share of one server opens no other"
    ada.ask("PATCH", f"/hub/api/shares/ada/{NAMED}", {"user": "bob"})
    hub.wait(lambda: bob.api("GET", place, "/jobs")[0] == 403, 60)


def _page_config(page: str) -> str:
    """What JupyterLab's page tells its scripts."""
    (found,) = re.findall(r'<script id="jupyter-config-data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return str(found)


def test_jobs_go_on_without_the_server(hub: Hub, people: dict[str, Browser], run: Run) -> None:
    """The Hub stops an idle server; its owner signs in to the next one and goes on where the panel was."""
    ada = people["ada"]
    views = asyncio.run(_follow(ada, run, {}))
    ada.stop()
    before = run.steps()
    hub.wait(lambda: run.steps() > before + 20, 60)
    assert ada.ask("POST", "/hub/api/users/ada/server").status_code in (201, 202)
    hub.wait(ada.runs, 120)
    assert ada.api("GET", "ada", "/jobs")[0] == 403, "a token of the stopped server is good for the new one"
    assert ada.open("ada") == 200
    again = asyncio.run(_follow(ada, run, views))
    assert again["state"] == "running" and again["step"] > before and again["members"] == views["members"]
    assert run.events("generation.formed")[1:] == []


async def _follow(browser: Browser, run: Run, view: dict[str, Any], place: str = "ada") -> dict[str, Any]:
    """The view of a job a few steps later, folded on from ``view`` where there is one."""
    async with browser.connected(place) as client:
        client.views |= {run.id: view} if view else {}
        await client.subscribe(run.id, cursors={run.id: view["seen"]} if view else None)
        begin = view.get("step", 0)
        await client.until(lambda: client.views.get(run.id, {}).get("step", 0) > begin + 3, 60)
        assert client.snapshots == ([] if view else [run.id])
        return client.views[run.id]


def test_pages_of_others_post_nothing_and_open_no_socket(people: dict[str, Browser]) -> None:
    ada = people["ada"]
    assert ada.api("POST", "ada", "/plan", b"{")[0] == 400
    for token in ("", "wrong", ada.cookie("_xsrf", "/hub/")):
        assert ada.api("POST", "ada", "/plan", b"{", **{"X-XSRFToken": token})[0] == 403
    assert asyncio.run(_opens(ada))
    assert not asyncio.run(_opens(ada, "https://elsewhere.example"))


def test_whoever_is_shut_out_is_refused(people: dict[str, Browser], bob: Browser) -> None:
    assert bob.api("GET", "ada", "/jobs")[0] == 200
    people["ada"].shuts_out("bob")
    bob.hub.wait(lambda: bob.api("GET", "ada", "/jobs")[0] == 403, 60)
    assert not asyncio.run(_opens(bob))
    assert bob.open("ada") == 403
