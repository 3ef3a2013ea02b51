"""The client of the API against a real API server: pages, watches, credentials, commands in pods, refusals."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.watching import ApiWatch
from jupyter_hyperpod.core.errors import ClusterError
from tests.kubernetes.test_testbed import WAIT, pod, start
from tests.support.kubernetes import ADMIN, TEAM, USER, Testbed
from tests.support.kubernetes.cluster import API

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
MAPS = f"/api/v1/namespaces/{TEAM}/configmaps"
ACCOUNTS = f"/api/v1/namespaces/{TEAM}/serviceaccounts"
ISSUER = "https://kubernetes.default.svc"
# Prints a token that ended two minutes ago, and from then on one that is good for an hour.
PLUGIN = """
import json, pathlib
here = pathlib.Path({here!r})
token = (here / ("late" if (here / "seen").exists() else "early")).read_text()
(here / "seen").touch()
print(json.dumps({{"kind": "ExecCredential", "status": {{"token": token}}}}))
"""
IN_POD = """
from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
with Api(read_access()) as api:
    try:
        api.get(f"/api/v1/namespaces/{api.namespace}/pods")
    except ApiError as error:
        print(api.namespace, error.status, error.reason)
"""


@pytest.fixture
def network(kubernetes: Testbed) -> Iterator[Testbed]:
    with kubernetes.network():
        yield kubernetes
    kubernetes.kubectl("delete", "--raw", f"{MAPS}?labelSelector=test%3Dyes")  # all by one request


@pytest.fixture
def api(network: Testbed) -> Iterator[Api]:
    """As the user, in the team's namespace."""
    with Api(read_access(kubeconfig=network.kubeconfig(USER))) as it:
        yield it


@pytest.fixture
def admin(network: Testbed) -> Iterator[Api]:
    with Api(read_access(kubeconfig=network.kubeconfig(ADMIN))) as it:
        it.namespace = TEAM
        yield it


def a_map(name: str, value: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"test": "yes"}}, "data": {"value": value}}


def test_objects_are_created_read_changed_and_deleted(api: Api) -> None:
    assert api.namespace == TEAM
    assert api.create(MAPS, a_map("one"))["metadata"]["uid"]
    with pytest.raises(ApiError) as raised:
        api.create(MAPS, a_map("one"))
    assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")
    assert api.patch(f"{MAPS}/one", {"data": {"value": "7"}})["data"] == {"value": "7"}
    assert api.patch(f"{MAPS}/one", {"data": {"more": "8"}}, "strategic")["data"] == {"value": "7", "more": "8"}
    changed = api.patch(f"{MAPS}/one", [{"op": "remove", "path": "/data/more"}], "json")
    assert api.get(f"{MAPS}/one")["data"] == changed["data"] == {"value": "7"}
    api.delete(f"{MAPS}/one")
    api.delete(f"{MAPS}/one")
    with pytest.raises(ApiError, match='configmaps "one" not found') as raised:
        api.get(f"{MAPS}/one")
    assert raised.value.status == 404


def test_1200_objects_are_listed_in_pages(api: Api) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: api.create(MAPS, a_map(f"map-{number:04}")), range(1200)))
    began = time.monotonic()
    items, version = api.list(MAPS, "test=yes")
    took_s = time.monotonic() - began
    assert [item["metadata"]["name"] for item in items] == [f"map-{number:04}" for number in range(1200)]
    assert int(version) > 0
    assert took_s < 10
    assert api.list(MAPS, "test=no")[0] == []


def test_a_watch_gives_what_is_there_and_then_every_change(api: Api) -> None:
    api.create(MAPS, a_map("before"))
    watch = api.watch(MAPS, "test=yes")
    assert seen(watch, 1) == [("ADDED", "before", "")]
    api.create(MAPS, a_map("new"))
    api.create(MAPS, {"metadata": {"name": "other"}})
    api.patch(f"{MAPS}/new", {"data": {"value": "7"}})
    api.delete(f"{MAPS}/new")
    assert seen(watch, 3) == [("ADDED", "new", ""), ("MODIFIED", "new", "7"), ("DELETED", "new", "7")]
    api.delete(f"{MAPS}/other")
    threading.Timer(0.2, watch.close).start()
    assert list(watch) == [], "an iteration that waits ends when another thread closes it"


def test_a_watch_goes_on_after_the_server_was_killed(network: Testbed, api: Api) -> None:
    watch = api.watch(MAPS, "test=yes")
    collected: list[tuple[str, str, str]] = []
    reader = threading.Thread(target=lambda: collected.extend(told(change) for change in watch))
    reader.start()
    try:
        api.create(MAPS, a_map("before"))
        network.until(lambda: len(collected) == 1, "the first is seen")
        with network.without(API):
            network.until(lambda: bool(watch.problem), "the watch notices")
        network.until(lambda: network._answers(), "the API answers again")
        api.create(MAPS, a_map("after"))
        network.until(lambda: len(collected) >= 2, "the second is seen")
        assert collected == [("ADDED", "before", ""), ("ADDED", "after", "")], "nothing is lost or repeated"
        assert watch.problem == ""
    finally:
        watch.close()
        reader.join(20)
    assert not reader.is_alive()


def test_a_version_that_the_server_has_forgotten_is_made_up_for(network: Testbed, api: Api) -> None:
    for name in ("stays", "goes", "changes", "anew"):
        api.create(MAPS, a_map(name))
    items, version = api.list(MAPS, "test=yes")
    for name in ("goes", "anew"):
        api.delete(f"{MAPS}/{name}")
    api.patch(f"{MAPS}/changes", {"data": {"value": "7"}})
    api.create(MAPS, a_map("anew"))
    network.restart(API)  # what it remembers of the past begins now
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "5"}
    network.until(lambda: _refuses(api, query), "the version is too old for the server")
    watch = api.watch(MAPS, "test=yes", since=version, known=items)
    found = set(seen(watch, 4))
    assert found == {
        ("MODIFIED", "changes", "7"),
        ("DELETED", "goes", ""),
        ("DELETED", "anew", ""),
        ("ADDED", "anew", ""),
    }
    api.create(MAPS, a_map("later"))
    assert seen(watch, 1) == [("ADDED", "later", "")]
    watch.close()


def _refuses(api: Api, query: dict[str, str]) -> bool:
    """The server says 410, in the stream or before it."""
    try:
        return api.get(MAPS, query).get("object", {}).get("code") == 410
    except ApiError as error:
        return error.status == 410
    except ClusterError:
        return False  # several lines, or none


def told(change: tuple[str, dict[str, Any]]) -> tuple[str, str, str]:
    kind, item = change
    return kind, item["metadata"]["name"], item["data"]["value"]


def seen(watch: ApiWatch, count: int) -> list[tuple[str, str, str]]:
    return [told(next(watch)) for _ in range(count)]


def test_a_token_that_has_ended_is_renewed(network: Testbed, admin: Api, tmp_path: Path) -> None:
    account = admin.create(ACCOUNTS, {"metadata": {"name": "renewed"}})
    now_s = int(time.time())
    (tmp_path / "early").write_text(signed(network, account, now_s - 3600, now_s - 120))
    (tmp_path / "late").write_text(signed(network, account, now_s - 3600, now_s + 3600))
    ended = replace(admin.access, token=(tmp_path / "early").read_text(), files=())
    with Api(ended) as refused, pytest.raises(ApiError, match="log in") as raised:
        refused.get(f"{ACCOUNTS}/renewed")
    assert raised.value.status == 401
    (tmp_path / "plugin.py").write_text(PLUGIN.format(here=str(tmp_path)))
    config = network.kubeconfig(ADMIN).read_text().splitlines()
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable}
    user = {"exec": asked | {"args": [str(tmp_path / "plugin.py")]}}
    config[-1] = f"users: [{{name: testbed, user: {json.dumps(user)}}}]"
    (tmp_path / "config").write_text("\n".join(config))
    review = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": TEAM}},
    }
    with Api(read_access(kubeconfig=tmp_path / "config")) as api:
        assert (
            api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)["status"]["allowed"] is False
        )


def signed(bed: Testbed, account: dict[str, Any], begins_s: int, ends_s: int) -> str:
    """A token of an account as the API server makes them, for a time of one's own choice."""
    about = account["metadata"]
    claims = {
        "iss": ISSUER, "aud": [ISSUER], "iat": begins_s, "nbf": begins_s, "exp": ends_s,
        "sub": f"system:serviceaccount:{about['namespace']}:{about['name']}",
        "kubernetes.io": {
            "namespace": about["namespace"], "serviceaccount": {"name": about["name"], "uid": about["uid"]}
        },
    }  # fmt: skip
    key = serialization.load_pem_private_key((bed.directory / "pki" / "accounts.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    text = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "ES256", "typ": "JWT"}, claims))
    r, s = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_pod_enters_with_its_account(network: Testbed) -> None:
    tree = str(Path(__file__).resolve().parents[2])
    program = f"import sys; sys.path.insert(0, {tree!r})\n{IN_POD}"
    made = json.loads(pod("enters", program))
    container = made["spec"]["containers"][0]
    container["command"] = [sys.executable, "-c", program]
    places = {"environment": sys.prefix, "tree": tree}
    made["spec"]["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, path in places.items()]
    container["volumeMounts"] = [{"name": name, "mountPath": path} for name, path in places.items()]
    network.kubectl("apply", "-f", "-", user=USER, text=json.dumps(made))
    network.until(
        lambda: network.get("pod", "enters", user=USER)["status"]["phase"] in ("Succeeded", "Failed"), "it ended"
    )
    assert network.kubectl("logs", "enters", user=USER).stdout == f"{TEAM} 403 Forbidden\n"


def test_commands_run_in_pods(network: Testbed, api: Api) -> None:
    start(network, "runs", WAIT)

    def run(program: str, stdin: bytes = b"", timeout_s: float = 60) -> tuple[int, bytes, bytes]:
        return api.execute("runs", ["python3", "-c", program], stdin, timeout_s)

    assert run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)") == (3, b"out\n", b"err\n")
    assert run("print('a' * (1 << 20), end='')") == (0, b"a" * (1 << 20), b"")
    sent = bytes(range(256)) * 4096
    count = f"import sys; data = sys.stdin.buffer.read({len(sent)}); sys.stdout.buffer.write(data[::-1])"
    assert run(count, sent) == (0, sent[::-1], b""), "a megabyte there and back"
    assert api.execute("runs", ["kill", "-0", "1"])[0] == 0
    assert api.execute("runs", ["kill", "-0", "12345"])[0] == 1
    words = ["; $(echo no) 'x' \u00e4&?+=", "", "a b"]
    echo = "import sys; sys.stdout.buffer.write('|'.join(sys.argv[1:]).encode())"
    assert api.execute("runs", ["python3", "-c", echo, *words])[1].decode() == "|".join(words)
    began = time.monotonic()
    with pytest.raises(ClusterError, match="not ended in time"):
        run("import time; time.sleep(3600)", timeout_s=2)
    assert time.monotonic() - began < 20
    with pytest.raises(ClusterError, match="no-such-program"):
        api.execute("runs", ["no-such-program"])
    with pytest.raises(ApiError, match='"gone" not found'):
        api.execute("gone", ["true"])


def test_logs_are_read_and_followed_to_the_end(network: Testbed, api: Api) -> None:
    start(network, "writes", "import time\nfor i in range(30): print('step', i, flush=True); time.sleep(0.1)")
    wanted = "".join(f"step {number}\n" for number in range(30)).encode()
    assert b"".join(api.logs("writes", follow=True)) == wanted
    assert b"".join(api.logs("writes")) == wanted
    assert b"".join(api.logs("writes", since="2099-01-01T00:00:00Z")) == b""


def test_another_authority_is_not_trusted(network: Testbed) -> None:
    access = read_access(kubeconfig=network.kubeconfig(USER))
    other = trustme.CA().cert_pem.bytes().decode()
    for wrong in (replace(access, ca=other), replace(access, ca=""), replace(access, server_name="elsewhere")):
        with Api(wrong) as api, pytest.raises(ClusterError, match="not to be trusted"):
            api.get(MAPS)
    with Api(replace(access, ca=other, skip_verification=True)) as api:
        assert api.access.warning and api.list(MAPS)


def test_what_is_not_allowed_is_named(network: Testbed, api: Api) -> None:
    with pytest.raises(
        ApiError, match=f'User "{USER}" cannot list resource "nodes".*ask who runs the cluster'
    ) as raised:
        api.list("/api/v1/nodes")
    assert (raised.value.status, raised.value.reason) == (403, "Forbidden")
    with pytest.raises(ApiError, match="nodes") as raised:
        next(api.watch("/api/v1/nodes"))
    assert raised.value.status == 403
    with pytest.raises(ApiError) as raised, Api(replace(api.access, token="x", files=())) as stranger:
        stranger.list(MAPS)
    assert raised.value.status == 401


def test_the_server_may_be_away_for_a_moment(network: Testbed, api: Api) -> None:
    assert api.list(MAPS)
    with ExitStack() as later:
        later.enter_context(network.without(API))
        with pytest.raises(ClusterError, match="cannot be reached"):
            api.list(MAPS)
    network.until(lambda: network._answers(), "the API answers again")
    assert api.create(MAPS, a_map("after"))
