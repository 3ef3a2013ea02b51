"""The client of the API: which requests are repeated, when credentials are read again, what errors say."""

from __future__ import annotations

import json
import socket
import stat
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes import login
from jupyter_hyperpod.backends.kubernetes.api_requests import ApiRequest
from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.kubeconfig import Access, Plugin, read_access
from jupyter_hyperpod.core.errors import ClusterError
from tests.backends.kubernetes.server import CUT, Answer, answer, scripted, status_of

JOBS = "/apis/batch/v1/namespaces/default/jobs"
JOB = {"kind": "Job", "metadata": {"name": "hp-1-0", "labels": {"batch": "1"}}}
OTHER = {"kind": "Job", "metadata": {"name": "hp-1-0", "labels": {"batch": "2"}}}
SECRET = "a-token-nobody-may-see"
V1 = "client.authentication.k8s.io/v1"


def script(*answers: Answer) -> object:
    """Those answers in turn; the last one again and again."""
    return lambda number: answers[min(number, len(answers) - 1)]


def plugin(tmp_path: Path, *printed: str) -> Plugin:
    """A command that prints those texts in turn; the last one again and again."""
    for number, text in enumerate(printed):
        (tmp_path / f"{number}.out").write_text(text)
    program = tmp_path / "plugin"
    program.write_text(f"""#!{sys.executable}
import os, pathlib
here = pathlib.Path({str(tmp_path)!r})
count = here / "count"
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
(here / "told").write_text(os.environ["KUBERNETES_EXEC_INFO"])
print((here / f"{{min(number, {len(printed) - 1})}}.out").read_text())
""")
    program.chmod(0o700)
    return Plugin(str(program), version=V1)


def credential(token: str, until: str = "") -> str:
    status = {"token": token} | ({"expirationTimestamp": until} if until else {})
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


def in_seconds(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat().replace("+00:00", "Z")


def test_a_connection_is_used_again_and_a_closed_one_is_not() -> None:
    closing = answer(200, {"n": 2}, ["Connection: close"])
    with scripted(script(answer(200, {"n": 1}), closing, answer(200, {"n": 3}))) as server, Api(server.access()) as api:
        assert [api.get(JOBS)["n"] for _ in range(3)] == [1, 2, 3]
        assert server.connections == 2


def test_a_request_that_was_cut_off_is_repeated_where_that_is_safe() -> None:
    with scripted(script(CUT, answer(200, {"n": 1}))) as server, Api(server.access()) as api:
        assert api.get(JOBS) == {"n": 1}
    with scripted(script(CUT, answer(200))) as server, Api(server.access()) as api:
        with pytest.raises(ClusterError, match="cannot be reached"):
            api.patch(JOBS, [{"op": "add"}], kind="json")
        assert len(server.asked) == 1, "a second patch of this kind could change something else"


def test_what_exists_after_a_repeated_creation_was_created() -> None:
    exists = status_of(409, "AlreadyExists")
    with scripted(script(CUT, exists, answer(200, JOB))) as server, Api(server.access()) as api:
        assert api.create(JOBS, JOB) == JOB
        assert [line.split()[0] for line, _, _ in server.asked] == ["POST", "POST", "GET"]
    with scripted(script(exists, answer(200, JOB))) as server, Api(server.access()) as api:
        with pytest.raises(ApiError) as raised:
            api.create(JOBS, JOB)
        assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")
    with scripted(script(CUT, exists, answer(200, OTHER))) as server, Api(server.access()) as api:
        with pytest.raises(ApiError):
            api.create(JOBS, JOB)  # somebody else's, of the same name


def test_a_creation_without_a_name_is_sent_once() -> None:
    with scripted(script(CUT)) as server, Api(server.access()) as api:
        with pytest.raises(ClusterError):
            api.create(JOBS, {"metadata": {"generateName": "hp-"}})
        assert len(server.asked) == 1


def test_a_busy_server_is_asked_again_when_it_says_so() -> None:
    busy = [status_of(429, "TooManyRequests"), status_of(503, "ServiceUnavailable"), status_of(500, "InternalError")]
    with scripted(script(*busy, answer(200, {"n": 1}))) as server, Api(server.access()) as api:
        assert api.get(JOBS) == {"n": 1}
        assert len(server.asked) == 4
    with scripted(script(status_of(503, "ServiceUnavailable", "etcd is away"))) as server, Api(server.access()) as api:
        with pytest.raises(ApiError, match="etcd is away"):
            api.get(JOBS)


def test_what_was_allowed_and_is_refused_by_a_server_that_has_just_begun_is_asked_again() -> None:
    forbidden = status_of(403, "Forbidden", "no such role")
    with scripted(script(forbidden, answer(200, {"n": 1}), forbidden, answer(200, {"n": 2}))) as server:
        with Api(server.access()) as api:
            with pytest.raises(ApiError, match="no such role"):
                api.get(f"{JOBS}/a")
            assert len(server.asked) == 1, "what was never allowed is refused at once"
            assert [api.get(f"{JOBS}/{name}")["n"] for name in "bc"] == [1, 2]


@pytest.mark.parametrize(
    ("user", "what", "says"),
    [
        (
            "system:serviceaccount:team:heads",
            'create resource "jobs" in API group "batch"',
            "setup role --account heads` prints, or, where the head of a job runs in a pod (head=pod), name an account "
            "that has it: --kubernetes account=NAME",
        ),
        ("system:serviceaccount:team:heads", 'get resource "pods/exec" in API group ""', "setup role --account heads`"),
        (
            "jane",
            'list resource "pods" in API group ""',
            "for this right: `jupyter hyperpod setup role` prints the Role",
        ),
        ("jane", 'create resource "roles" in API group "rbac.authorization.k8s.io"', "for this right"),
        ("system:serviceaccount:team:heads", 'get resource "secrets" in API group ""', "for this right"),
    ],
)
def test_a_right_that_is_missing_is_said_with_what_gives_it(user: str, what: str, says: str) -> None:
    told = f'jobs.batch is forbidden: User "{user}" cannot {what} in the namespace "team"'
    with scripted(script(status_of(403, "Forbidden", told))) as server, Api(server.access()) as api:
        with pytest.raises(ApiError) as refused:
            api.get(JOBS)
    assert told in str(refused.value) and says in str(refused.value)


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/api/v1/namespaces/team/pods/p/exec", "/api/v1/namespaces/team/pods/exec"),
        ("/api/v1/namespaces/team/pods", "/api/v1/namespaces/team/pods"),
        ("/apis/batch/v1/namespaces/team/jobs/j", "/apis/batch/v1/namespaces/team/jobs"),
        ("/api/v1/nodes/n1", "/api/v1/nodes"),
        ("/api/v1/namespaces/team", "/api/v1/namespaces"),
        ("/apis/scheduling.k8s.io/v1/priorityclasses/high", "/apis/scheduling.k8s.io/v1/priorityclasses"),
        ("/version", "/version"),
    ],
)
def test_a_right_is_a_path_without_names(path: str, right: str) -> None:
    assert ApiRequest("GET", path).right == ("GET", right)


def test_deleting_what_is_gone_is_no_error() -> None:
    with scripted(script(status_of(404, "NotFound"))) as server, Api(server.access()) as api:
        api.delete(f"{JOBS}/a", grace_s=30)
        assert json.loads(server.asked[0][2])["gracePeriodSeconds"] == 30


def test_pages_are_joined_and_begun_anew_where_the_server_forgot_them() -> None:
    first = answer(200, {"items": [{"n": 1}], "metadata": {"continue": "more/+=", "resourceVersion": "7"}})
    last = answer(200, {"items": [{"n": 2}], "metadata": {"resourceVersion": "7"}})
    with scripted(script(first, status_of(410, "Expired"), first, last)) as server, Api(server.access()) as api:
        assert api.list(JOBS, "app=hyperpod") == ([{"n": 1}, {"n": 2}], "7")
        asked = [line.partition("?")[2] for line, _, _ in server.asked]
        assert asked[3] == "labelSelector=app%3Dhyperpod&limit=500&continue=more%2F%2B%3D"


def test_a_token_file_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    def answers(number: int) -> Answer:
        token.write_text("new\n")
        return status_of(401, "Unauthorized") if server.tokens[number] == "old" else answer(200, {"n": 1})

    with scripted(answers) as server, Api(server.access(token_file=str(token))) as api:
        assert api.get(JOBS) == {"n": 1}
        assert server.tokens == ["old", "new"]


def test_a_kubeconfig_is_read_again_after_a_refusal_but_not_for_another_server(tmp_path: Path) -> None:
    def written(server: str, token: str) -> None:
        user, cluster = {"name": "u", "user": {"token": token}}, {"name": "c", "cluster": {"server": server}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        whole = {"current-context": "x", "clusters": [cluster], "contexts": [context], "users": [user]}
        (tmp_path / "config").write_text(json.dumps(whole))

    with scripted(lambda number: answer(200) if server.tokens[number] == "new" else status_of(401, "")) as server:
        here = server.access()
        written(here.server, "old")
        access = replace(read_access(kubeconfig=tmp_path / "config"), ca=here.ca)
        with Api(access) as api:
            written("https://elsewhere", "new")
            with pytest.raises(ApiError):
                api.get(JOBS)
            written(here.server, "new")
            assert api.get(JOBS) == {}
        assert server.tokens == ["old", "old", "new"]


def test_a_refused_credential_that_does_not_change_is_an_error_that_says_what_to_do() -> None:
    with scripted(script(status_of(401, "Unauthorized"))) as server, Api(server.access(token=SECRET)) as api:
        with pytest.raises(ApiError, match="log in to the cluster again") as raised:
            api.get(JOBS)
        assert raised.value.status == 401 and len(server.asked) == 1
        assert SECRET not in str(raised.value) and SECRET not in repr(api.access)


def test_a_plugin_is_run_before_its_credential_ends_and_not_earlier(tmp_path: Path) -> None:
    made = plugin(tmp_path, credential("first", in_seconds(6)), credential("second", in_seconds(3600)))
    with scripted(script(answer(200))) as server, Api(server.access(plugin=made)) as api:
        api.get(JOBS)
        api.get(JOBS)
        assert server.tokens == ["first", "first"]
        deadline = time.monotonic() + 50
        while server.tokens[-1] == "first" and time.monotonic() < deadline:
            api.get(JOBS)
        assert server.tokens[-1] == "second"
        assert (tmp_path / "count").read_text() == "2"
        told = json.loads((tmp_path / "told").read_text())
        assert told == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}


def test_a_plugin_that_fails_once_does_not_take_a_credential_that_is_still_good(tmp_path: Path) -> None:
    printed = credential("first", in_seconds(40)), "the network is away", credential("second", in_seconds(3600))
    keeper = login.Login(Access("https://x", plugin=plugin(tmp_path, *printed)))
    assert keeper.current()[0].token == "first"
    keeper._credential = login.replace(keeper.current()[0], renew_s=0.0)
    assert keeper.current()[0].token == "first"
    assert (tmp_path / "count").read_text() == "2"
    keeper._credential = login.replace(keeper.current()[0], renew_s=0.0)
    assert keeper.current()[0].token == "second"


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("", "no JSON"),
        ("[]", "ExecCredential"),
        (json.dumps({"kind": "ExecCredential", "status": {}}), "neither a token nor a client certificate"),
        (credential(SECRET, "tomorrow"), "no time"),
        (credential(SECRET, "2030-01-01T00:00:00"), "no time"),
        (credential(f"{SECRET}\r\nX: y"), "characters"),
    ],
)
def test_what_a_plugin_prints_is_checked_and_never_shown(tmp_path: Path, printed: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words) as raised:
        login.read_credential(Access("https://x", plugin=plugin(tmp_path, printed)))
    assert SECRET not in str(raised.value)


@given(st.binary(max_size=60) | st.from_type(dict).map(lambda found: json.dumps(found, default=str).encode()))
def test_anything_printed_is_a_credential_or_a_reason(printed: bytes) -> None:
    with pytest.raises(ValueError):
        login.parse_credential(printed)


def test_a_plugin_that_is_missing_or_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="`aws-of-nobody`.* was not found: brew install it"):
        login.read_credential(Access("https://x", plugin=Plugin("aws-of-nobody", hint="brew install it\nor not")))
    failing = Plugin(sys.executable, ("-c", "import sys; sys.exit('the session has ended')"))
    with pytest.raises(ClusterError, match="ended with 1: the session has ended"):
        login.read_credential(Access("https://x", plugin=failing))


def test_a_client_certificate_is_shown_and_a_new_one_is_used(tmp_path: Path) -> None:
    people = trustme.CA()
    made = people.issue_cert("alice")
    files = {"certificate_file": tmp_path / "a.crt", "key_file": tmp_path / "a.key"}
    made.cert_chain_pems[0].write_to_path(files["certificate_file"])
    made.private_key_pem.write_to_path(files["key_file"])
    before = set(Path("/tmp").glob("hyperpod-*"))
    with scripted(script(answer(200)), people) as server:
        inline = {name.removesuffix("_file"): path.read_text() for name, path in files.items()}
        for given_as in ({name: str(path) for name, path in files.items()}, inline):
            with Api(server.access(**given_as)) as api:
                api.get(JOBS)
        with Api(server.access()) as api, pytest.raises(ClusterError):
            api.get(JOBS)
        wrong = {**inline, "key": trustme.CA().issue_cert("bob").private_key_pem.bytes().decode()}
        with Api(server.access(**wrong)) as api, pytest.raises(ClusterError, match="do not fit") as raised:
            api.get(JOBS)
        assert "PRIVATE" not in str(raised.value)
    assert set(Path("/tmp").glob("hyperpod-*")) == before


def test_a_server_that_another_authority_vouches_for_gets_nothing() -> None:
    with scripted(script(answer(200))) as server:
        other = trustme.CA().cert_pem.bytes().decode()
        with Api(server.access(ca=other, token=SECRET)) as api:
            with pytest.raises(ClusterError, match="not to be trusted.*Nothing was sent"):
                api.get(JOBS)
        with Api(server.access(server_name="elsewhere", token=SECRET)) as api:
            with pytest.raises(ClusterError, match="not to be trusted"):
                api.get(JOBS)
        assert server.asked == []
        assert server.accepted == 2, "trying again would not help"
        with Api(server.access(ca=other, skip_verification=True)) as api:
            assert api.get(JOBS) == {}


def test_a_server_that_is_away_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Api(Access(f"https://127.0.0.1:{port}")) as api:
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port} cannot be reached to read"):
            api.get(JOBS)


@pytest.mark.parametrize("path", ["", "api", "/api/../secrets", "/api?x=1", "/a b", "/a\r\nX: y", "//x", "/a%2e"])
def test_what_is_no_path_of_the_api_is_not_sent(path: str) -> None:
    with scripted(script(answer(200))) as server, Api(server.access()) as api:
        with pytest.raises(ClusterError, match="no path"):
            api.get(path)
        assert server.asked == []


def test_an_answer_that_is_no_object_is_an_error() -> None:
    page = b"HTTP/1.1 200 x\r\nContent-Length: 6\r\n\r\n<html>"
    with scripted(script(page)) as server, Api(server.access()) as api:
        with pytest.raises(ClusterError, match="is that its API server"):
            api.get(JOBS)


def test_a_proxy_of_the_environment_is_used_and_may_be_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, scripted(script(answer(200, {"n": 1}))) as server:
        listener.settimeout(50)
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with Api(server.access()) as api:
            assert api.get(JOBS) == {"n": 1}
        monkeypatch.setenv("NO_PROXY", "elsewhere")
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool, Api(server.access()) as api:
            asked = pool.submit(api.patch, JOBS, [], "json")
            with listener.accept()[0] as peer:
                said = peer.recv(4096)
                peer.sendall(b"HTTP/1.1 407 no\r\n\r\n")
            for _ in range(5):
                listener.accept()[0].close()
            with pytest.raises(ClusterError) as raised:
                asked.result(50)
    assert said.startswith(b"CONNECT 127.0.0.1:") and b"Proxy-Authorization: Basic " in said
    assert SECRET not in str(raised.value)


def test_files_of_secrets_are_not_made() -> None:
    with login._on_disk(SECRET) as path:
        assert Path(path).read_text() == SECRET
        assert not stat.S_IMODE(Path(path).stat().st_mode) & 0o007 or path.startswith("/proc/self/fd/")
