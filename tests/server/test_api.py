"""REST: who may ask, what is answered, and that the OpenAPI file says so."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jupyter_server.auth import User
from jupyter_server.auth.identity import PasswordIdentityProvider
from tornado.httpclient import HTTPClientError

from jupyter_hyperpod import __version__
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.views import BULK, new_job_view
from jupyter_hyperpod.server.handlers import ROOT, ROUTES
from jupyter_hyperpod.storage.journal import event_writer, follow_commands
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.users import own_name
from tests.server.conftest import Api, MakeJob

UNKNOWN = "nothing-abcdefgh"
FILE = "shared/results.txt"


def operations(openapi: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (verb.upper(), path)
        for path, item in openapi["paths"].items()
        for verb in item
        if verb in ("get", "post", "put", "patch", "delete")
    ]


def check(openapi: dict[str, Any], schema: str, value: Any) -> None:
    Draft202012Validator({"$ref": f"#/components/schemas/{schema}", "components": openapi["components"]}).validate(
        value
    )


def test_the_openapi_file_names_the_routes_and_their_verbs(openapi: dict[str, Any]) -> None:
    served = {
        (verb.upper(), re.sub(r"\(\(?.*/\.\*.*\)", "/{path}", pattern.removeprefix(ROOT).replace("([^/]+)", "{id}")))
        for pattern, handler in ROUTES
        for verb in ("get", "post", "put", "patch", "delete", "head", "options")
        if any(verb in base.__dict__ for base in handler.__mro__ if base.__module__.startswith("jupyter_hyperpod"))
    }
    assert served == set(operations(openapi))


def test_the_openapi_file_names_every_field_of_a_job(openapi: dict[str, Any]) -> None:
    view = new_job_view(UNKNOWN)
    schemas = openapi["components"]["schemas"]
    assert list(schemas["JobSummary"]["properties"]) == schemas["JobSummary"]["required"]
    assert set(schemas["JobSummary"]["required"]) == set(view) - BULK
    assert set(schemas["JobView"]["properties"]) == set(view)


async def test_strangers_are_refused_everywhere(
    openapi: dict[str, Any], api: Api, jp_fetch: Any, jp_ws_fetch: Any, make_job: MakeJob
) -> None:
    job = make_job()
    for method, path in operations(openapi):
        parts = f"{ROOT}{path.format(id=job.id, path=FILE)}".strip("/").split("/")
        with pytest.raises(HTTPClientError) as refused:
            if path == "/stream":
                await jp_ws_fetch(*parts, headers={"Authorization": "token wrong"})
            else:
                body = "{}" if method in ("POST", "PUT", "PATCH") else None
                await jp_fetch(*parts, method=method, body=body, headers={"Authorization": ""})
        assert refused.value.code == 403, (method, path)
        if path != "/stream":
            assert refused.value.response is not None
            check(openapi, "Error", json.loads(refused.value.response.body))
    assert follow_commands(job.commands).poll() == []


def resource_of(path: str) -> str:
    if path.endswith("/fault"):
        return "jupyter_hyperpod.faults"
    if path.endswith(("/promotion", "/promote")):
        return "jupyter_hyperpod.runs"
    if path in ("/runs", "/runs/sources", "/comparison", "/trials", "/sharing"):
        return "jupyter_hyperpod.jobs"
    first = path.split("/")[1]
    other = {"stream": "jobs", "mounts": "files", "contents": "files", "metrics": "cluster", "plan": "settings"}
    other |= {"sharing": "runs", "backends": "cluster", "clusters": "cluster", "schedules": "runs"}
    return f"jupyter_hyperpod.{other.get(first, first)}"


async def test_the_authorizer_is_asked_about_the_kind_of_thing(
    openapi: dict[str, Any], api: Api, jp_serverapp: Any, jp_ws_fetch: Any, make_job: MakeJob
) -> None:
    job = make_job()
    asked: list[tuple[str, str]] = []
    expected: list[tuple[str, str]] = []

    class Nobody(type(jp_serverapp.authorizer)):  # type: ignore[misc]
        def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
            asked.append((action, resource))
            return False

    jp_serverapp.web_app.settings["authorizer"] = Nobody(parent=jp_serverapp)
    for method, path in operations(openapi):
        if path != "/stream":
            status, answer = await api(method, path.format(id=job.id, path=FILE))
            assert (status, "not authorized" in answer["message"]) == (403, True), (method, path, answer)
            expected.append(("read" if method == "GET" else "write", resource_of(path)))
    with pytest.raises(HTTPClientError) as refused:
        await jp_ws_fetch(*ROOT.strip("/").split("/"), "stream")
    assert refused.value.code == 403
    assert asked == [*expected, ("read", "jupyter_hyperpod.jobs")]
    assert follow_commands(job.commands).poll() == []


async def test_a_cookie_alone_does_not_post(api: Api, jp_fetch: Any, jp_serverapp: Any, jp_base_url: str) -> None:
    """A page of another site can make a browser send cookies, but knows no XSRF token."""
    answer = await jp_fetch("api", "status")
    cookies = "; ".join(cookie.split(";")[0] for cookie in answer.headers.get_list("Set-Cookie"))
    assert "username-" in cookies
    headers = {"Authorization": "", "Cookie": cookies}
    status, _ = await api("GET", "/settings", headers={**headers, "Sec-Fetch-Site": "same-origin"})
    assert status == 200
    status, _ = await api("POST", "/cluster/stop", headers=dict(headers))
    assert status == 403


@pytest.mark.parametrize("jp_base_url", ["/", "/user/someone@example.org/", "/a%40b/%C3%BC/"])
async def test_any_base_url(api: Api, store: Store, jp_root_dir: Path) -> None:
    assert await api("GET", "/settings") == (
        200,
        {
            "version": __version__,
            "store": str(store.root),
            "root": str(jp_root_dir),
            "allow_faults": True,
        },
    )


async def test_a_store_that_does_not_exist_is_an_empty_one(api: Api, store: Store, openapi: dict[str, Any]) -> None:
    for path in (store.cluster_events, store.cluster, store.cells, store.jobs, store.shared, store.root):
        shutil.rmtree(path)
    assert await api("GET", "/jobs") == (200, {"jobs": [], "older": 0})
    status, view = await api("GET", "/cluster")
    assert (status, view["state"]) == (200, "stopped")
    check(openapi, "ClusterView", view)
    status, answer = await api("GET", f"/jobs/{UNKNOWN}")
    assert status == 404 and UNKNOWN in answer["message"]
    for action in ("stop", "heal"):
        status, answer = await api("POST", f"/cluster/{action}")
        assert status == 503 and answer["hint"]
    assert not store.root.exists()


async def test_jobs_and_their_cells(api: Api, make_job: MakeJob, openapi: dict[str, Any]) -> None:
    first = make_job("first")
    second = make_job("second", source="x = 'ü'\n")
    os.utime(first.path, (1, 1))
    status, answer = await api("GET", "/jobs")
    assert status == 200
    assert {job["id"] for job in answer["jobs"]} == {first.id, second.id}
    for job in answer["jobs"]:
        check(openapi, "JobSummary", job)
        assert not BULK & set(job)
    newest, oldest = (job["id"] for job in answer["jobs"])
    status, page = await api("GET", "/jobs", params={"before": newest, "limit": "1"})
    assert status == 200 and [job["id"] for job in page["jobs"]] == [oldest] and page["older"] == 0
    assert await api("GET", "/jobs", params={"before": oldest}) == (200, {"jobs": [], "older": 0})
    refused = (({"before": newest, "limit": "0"}, 400), ({"before": UNKNOWN}, 404), ({"before": "x"}, 400))
    for wrong, expected in refused:
        assert (await api("GET", "/jobs", params=wrong))[0] == expected
    status, view = await api("GET", f"/jobs/{second.id}")
    assert (status, view["name"], view["state"]) == (200, "second", "pending")
    check(openapi, "JobView", view)
    assert await api("GET", f"/jobs/{second.id}/cell") == (200, {"source": "x = 'ü'\n"})


async def test_one_corrupt_job_does_not_hide_the_others(api: Api, make_job: MakeJob, store: Store) -> None:
    good, bad = make_job("good"), make_job("bad")
    journal = next(bad.events.iterdir())
    journal.write_bytes(journal.read_bytes() + b'{"half a line\n')
    (store.jobs / "not a job").mkdir()
    status, answer = await api("GET", "/jobs")
    assert status == 200
    listed = {job["name"]: job for job in answer["jobs"]}
    assert set(listed) == {"good", "bad"}
    assert "not a journal line" in listed["bad"]["warnings"][0]["text"]
    assert listed["good"]["warnings"] == []
    assert good.id == listed["good"]["id"]


async def test_commands_are_written_for_the_job(api: Api, make_job: MakeJob) -> None:
    job = make_job(nodes=2)
    stop, scale = f"/jobs/{job.id}/stop", f"/jobs/{job.id}/scale"
    assert await api("POST", scale, {"target": 1}) == (202, {"id": job.id, "command": "scale"})
    assert await api("POST", stop, {"reason": "enough"}) == (202, {"id": job.id, "command": "stop"})
    assert await api("POST", stop) == (202, {"id": job.id, "command": "stop"})
    by = {"user": own_name(), "uid": os.geteuid(), "identity": ""}
    found = [(command.kind, dict(command.data)) for command in follow_commands(job.commands).poll()]
    assert found == [
        ("scale", {"target": 1, "by": by}),
        ("stop", {"reason": "enough", "by": by}),
        ("stop", {"reason": f"stopped by {own_name()}", "by": by}),
    ]
    status, answer = await api("POST", scale, {"target": 9})
    assert status == 400 and "outside the range 1:2" in answer["message"]
    with event_writer(job.events, "coordinator") as journal:
        journal.append("job.state", {"state": "failed", "reason": "it broke"})
    status, answer = await api("POST", stop)
    assert status == 409 and "failed: it broke" in answer["message"]


class Ada(PasswordIdentityProvider):
    """A server of several people, such as JupyterHub's, knows their names."""

    def generate_anonymous_user(self, handler: object) -> User:
        return User("ada-l", "Ada Lovelace", "Ada\nLovelace")


SERVER_OF_SEVERAL = {"jpserver_extensions": {"jupyter_hyperpod": True}, "identity_provider_class": Ada}


@pytest.mark.parametrize("server_config", [{"ServerApp": SERVER_OF_SEVERAL}])
async def test_commands_name_the_person_that_jupyter_knows(api: Api, make_job: MakeJob) -> None:
    job = make_job()
    assert (await api("POST", f"/jobs/{job.id}/stop"))[0] == 202
    (command,) = follow_commands(job.commands).poll()
    assert command.data["by"] == {"user": own_name(), "uid": os.geteuid(), "identity": "ada-l"}
    assert command.data["reason"] == f"stopped by ada-l ({own_name()})"


class Number(PasswordIdentityProvider):
    """An account whose name looks like those that a server makes up, as some providers of identities have them."""

    def generate_anonymous_user(self, handler: object) -> User:
        return User(NUMBER, NUMBER, NUMBER)


NUMBER = "0123456789abcdef" * 2
NUMBERED = {"jpserver_extensions": {"jupyter_hyperpod": True}, "identity_provider_class": Number}


@pytest.mark.parametrize("server_config", [{"ServerApp": NUMBERED}])
async def test_a_name_of_hexadecimal_digits_is_a_name(api: Api, make_job: MakeJob) -> None:
    job = make_job()
    assert (await api("POST", f"/jobs/{job.id}/stop"))[0] == 202
    (command,) = follow_commands(job.commands).poll()
    assert command.data["by"]["identity"] == NUMBER


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("scale", {}, "'target' is a required property"),
        ("scale", {"target": "two"}, "target: 'two' is not of type 'integer'"),
        ("scale", {"target": True}, "target: True is not of type 'integer'"),
        ("scale", {"target": 0}, "target: 0 is less than the minimum"),
        ("scale", {"target": 1, "force": 1}, "'force' was unexpected"),
        ("scale", [1], "the body: [1] is not of type 'object'"),
        ("scale", b"target=1", "the body is not JSON"),
        ("scale", b"\xff\xfe", "the body is not JSON"),
        ("scale", b"[" * 60_000, "the body is not JSON"),
        ("stop", {"reason": "x" * 501}, "reason: "),
        ("stop", {"reason": 5}, "reason: 5 is not of type 'string'"),
    ],
)
async def test_bad_bodies(api: Api, make_job: MakeJob, path: str, body: Any, words: str) -> None:
    job = make_job()
    status, answer = await api("POST", f"/jobs/{job.id}/{path}", body)
    assert status == 400
    assert words in answer["message"]
    assert follow_commands(job.commands).poll() == []


@pytest.mark.parametrize(
    "refused", [{"Authorization": "token wrong"}, {"Cookie": "of=a-stranger"}, {"Origin": "https://elsewhere.example"}]
)
async def test_a_refused_body_is_read(
    api: Api, make_job: MakeJob, jp_http_port: int, jp_base_url: str, jp_auth_header: Any, refused: dict[str, str]
) -> None:
    """A proxy that still sends a body when the connection is closed does not pass the answer on."""
    job = make_job()

    def request(method: str, path: str, headers: dict[str, str], body: str = "") -> bytes:
        told = {"Host": f"127.0.0.1:{jp_http_port}", "Content-Length": str(len(body)), **headers}
        lines = [f"{method} {jp_base_url}{ROOT.lstrip('/')}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in told.items())]
        return "\r\n".join([*lines, "", body]).encode()

    reader, writer = await asyncio.open_connection("127.0.0.1", jp_http_port)
    try:
        writer.write(request("POST", f"/jobs/{job.id}/stop", refused, '{"reason": "mine"}'))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 50)
        found = re.search(rb"Content-Length: (\d+)", head)
        assert head.startswith((b"HTTP/1.1 403", b"HTTP/1.1 404")) and found
        assert "message" in json.loads(await reader.readexactly(int(found[1])))
        writer.write(request("GET", "/settings", jp_auth_header))
        assert (await asyncio.wait_for(reader.readline(), 50)).startswith(b"HTTP/1.1 200")
    finally:
        writer.close()
        await writer.wait_closed()
    assert follow_commands(job.commands).poll() == []


@pytest.mark.parametrize("length", ["x", "-1", "1_0", "1, 1", "0x10", "٣", "9" * 5000])
async def test_a_length_that_is_no_number_is_refused(
    api: Api, jp_http_port: int, jp_base_url: str, caplog: pytest.LogCaptureFixture, length: str
) -> None:
    """Tornado reads this header after the handler has begun, and a stranger sends what he likes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", jp_http_port)
    try:
        head = f"POST {jp_base_url}{ROOT.lstrip('/')}/plan HTTP/1.1\r\nHost: 127.0.0.1:{jp_http_port}\r\n"
        writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode())
        assert (await asyncio.wait_for(reader.readline(), 50)).startswith(b"HTTP/1.1 400")
    finally:
        writer.close()
        await writer.wait_closed()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("extension_config", [{"max_body_bytes": 2000}])
async def test_a_large_body_is_refused_before_it_is_read(
    api: Api, make_job: MakeJob, http_server_client: Any, jp_http_port: int, jp_auth_header: Any, jp_base_url: str
) -> None:
    job = make_job()
    status, answer = await api("POST", f"/jobs/{job.id}/stop", b"x" * 2001)
    assert (status, answer["message"]) == (413, "the body is larger than 2000 bytes")
    reader, writer = await asyncio.open_connection("127.0.0.1", jp_http_port)
    path = f"{jp_base_url}{ROOT.strip('/')}/jobs/{job.id}/stop"
    token = jp_auth_header["Authorization"]
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{jp_http_port}\r\nAuthorization: {token}\r\n"
    writer.write(f"{head}Content-Length: 100000000\r\n\r\n".encode())
    line = await asyncio.wait_for(reader.readline(), 50)
    assert b" 413 " in line
    writer.close()
    await writer.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", jp_http_port)
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    for _ in range(4):
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    line = await asyncio.wait_for(reader.readline(), 50)
    assert line == b"" or re.search(rb" 4\d\d ", line)
    writer.close()
    assert follow_commands(job.commands).poll() == []


@pytest.mark.parametrize(
    "job_id",
    ["..", "..%2F..%2Fetc%2Fpasswd", "%2e%2e%2f%2e%2e", "a%00b", "a%0a-abcdefgh", "x" * 3000, "tinylm-ABCDEFGH"],
)
async def test_ids_never_become_paths(
    api: Api, http_server_client: Any, jp_auth_header: Any, jp_base_url: str, job_id: str
) -> None:
    for verb, end in (("GET", ""), ("GET", "/cell"), ("POST", "/stop")):
        with pytest.raises(HTTPClientError) as refused:
            await http_server_client.fetch(
                f"{jp_base_url}{ROOT.strip('/')}/jobs/{job_id}{end}",
                method=verb,
                body="{}" if verb == "POST" else None,
                headers=dict(jp_auth_header),
            )
        assert refused.value.code in (400, 404)


@pytest.mark.parametrize("extension_config", [{"allow_faults": False}])
async def test_an_administrator_can_forbid_faults(api: Api, make_job: MakeJob) -> None:
    job = make_job()
    status, answer = await api("POST", f"/jobs/{job.id}/fault", {"fault": "kill", "rank": 0})
    assert status == 403
    assert "switched faults off" in answer["message"] and "HyperpodExtension.allow_faults" in answer["hint"]
    assert follow_commands(job.commands).poll() == []


async def test_faults_without_any_setting(api: Api, make_job: MakeJob) -> None:
    job = make_job()
    path = f"/jobs/{job.id}/fault"
    assert (await api("GET", "/settings"))[1]["allow_faults"] is True
    assert (await api("POST", path, {"fault": "melt", "rank": 0}))[0] == 400
    assert (await api("POST", path, {"fault": "kill"}))[0] == 400
    assert (await api("POST", path, {"fault": "kill", "rank": 0}))[0] == 409
    member = {"member": "node-1.a", "node": "node-1", "rank": 0, "pid": 1, "host": "127.0.0.1"}
    with event_writer(job.events, "coordinator") as journal:
        journal.append("job.state", {"state": "running", "reason": ""})
        formed = {"generation": 1, "members": [member], "spares": [], "target": 1, "reason": ""}
        journal.append("generation.formed", formed)
    assert (await api("POST", path, {"fault": "kill", "node": "node-7"}))[0] == 404
    assert await api("POST", path, {"fault": "kill", "node": "node-1", "rank": None}) == (
        202,
        {"id": job.id, "command": "fault"},
    )
    (command,) = follow_commands(job.commands).poll()
    assert command.data.items() >= {"fault": "kill", "rank": None, "node": "node-1"}.items()


async def test_a_store_that_cannot_be_read_is_507(api: Api, make_job: MakeJob, store: Store) -> None:
    job = make_job()
    (job.path / "spec.json").unlink()
    status, answer = await api("GET", f"/jobs/{job.id}/cell")
    assert status == 507 and "spec.json" in answer["message"] and answer["hint"]


async def test_a_blocked_call_does_not_block_the_server(api: Api, make_job: MakeJob, monkeypatch: Any) -> None:
    """Nothing of `control` runs on the event loop."""
    import threading

    release = threading.Event()
    listed = jobs.list_jobs
    monkeypatch.setattr(jobs, "list_jobs", lambda store: release.wait(50) and listed(store))
    slow = asyncio.ensure_future(api("GET", "/jobs"))
    try:
        async with asyncio.timeout(40):
            assert (await api("GET", "/settings"))[0] == 200
            assert (await api("GET", f"/jobs/{make_job().id}"))[0] == 200
        assert not slow.done()
    finally:
        release.set()
    assert (await slow)[0] == 200


async def test_an_event_that_cannot_be_folded_is_a_warning(api: Api, make_job: MakeJob) -> None:
    job = make_job()
    with event_writer(job.events, "odd") as journal:
        journal.append("generation.formed", {"generation": "x", "members": 5, "spares": 0, "target": 0, "reason": ""})
        journal.append("job.state", {"state": "running", "reason": "all the same"})
    status, view = await api("GET", f"/jobs/{job.id}")
    assert (status, view["state"]) == (200, "running")
    assert "cannot be shown" in view["warnings"][0]["text"]
    status, answer = await api("GET", "/jobs")
    assert (status, answer["jobs"][0]["state"]) == (200, "running")


async def test_a_plan_is_made_and_says_what_it_rests_on(openapi: dict[str, Any], api: Api) -> None:
    asked = {"instances": 256, "rate": 0.0005, "manual_s": 16800, "automatic_s": 2400, "gpu_hours": 10e6, "price": 5}
    status, found = await api("POST", "/plan", asked)
    assert status == 200
    check(openapi, "Plan", found)
    assert found["plan"]["reduction"] == pytest.approx(0.3205, abs=0.0005)
    assert found["plan"]["saving"] == pytest.approx(25.6e6, abs=0.1e6)
    assert found["picture"].startswith("<svg") and "256 instances" in found["picture"]
    small = asked | {"gpu_hours": 1e5, "simulate": True, "convention": "restart"}
    status, simulated = await api("POST", "/plan", small)
    assert status == 200
    check(openapi, "Plan", simulated)
    assert set(simulated["plan"]["simulation"]) == {"by hand", "automatic", "in place"}
    assert "seed 0" in " ".join(simulated["plan"]["lines"])
    for wrong, told in (({"rate": -1}, "rate"), ({"instances": 0}, "instances"), ({"automatic_s": 99999}, "exchanged")):
        status, refused = await api("POST", "/plan", asked | wrong)
        assert status == 400 and told in refused["message"]
    status, refused = await api("POST", "/plan", asked | {"instances": 100_000, "gpu_hours": 1e12, "simulate": True})
    assert status == 400 and "fewer runs" in refused["message"]


async def test_clusters_stand_side_by_side_and_those_of_a_kubeconfig_are_asked_by_name(
    openapi: dict[str, Any], api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = {"server": "https://127.0.0.1:1"}
    contexts = [{"name": name, "context": {"cluster": "c"}} for name in ("far", "near")]
    config = {"clusters": [{"name": "c", "cluster": server}], "contexts": contexts, "current-context": "near"}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    status, found = await api("GET", "/clusters")
    assert status == 200
    check(openapi, "Clusters", found)
    told = [(one["backend"], one["context"], one["usual"], one["asked"]) for one in found["clusters"]]
    kubernetes = [("kubernetes", "near", True, False), ("kubernetes", "far", False, False)]
    assert told == [("local", "", True, False), *kubernetes]
    status, found = await api("GET", "/clusters", params={"context": "far"})
    (far,) = found["clusters"]
    assert status == 200 and far["asked"] and far["states"] == {} and "127.0.0.1:1" in far["problem"]
    status, refused = await api("GET", "/clusters", params={"context": "gone"})
    assert status == 404 and "no context 'gone'" in refused["message"]


async def test_backends_say_what_they_lack(
    openapi: dict[str, Any], api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, found = await api("GET", "/backends")
    assert status == 200
    check(openapi, "Backends", found)
    backends = {one["name"]: one for one in found["backends"]}
    assert backends["local"]["owns_nodes"] and backends["local"]["missing"] == ""
    assert "`sbatch`" in backends["slurm"]["missing"] and backends["slurm"]["states"] == {}


@pytest.mark.parametrize("unsayable", ("\0", "\ud800"))
async def test_a_text_that_no_path_can_hold_is_refused_wherever_it_stands(api: Api, unsayable: str) -> None:
    asked = {"node": f"node{unsayable}1", "action": "drain"}
    status, refused = await api("POST", "/cluster/node", asked)
    assert status == 400 and "node holds the character U+" in refused["message"]
    labels = {"jobs": [UNKNOWN], "add": ["good", f"bad{unsayable}"]}
    status, refused = await api("POST", "/runs/labels", labels)
    assert status == 400 and "add.1 holds" in refused["message"]
