"""Two people at one server, whom an authorizer gives different rights: each handler, each verb, no wrong answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jupyter_server.auth import User
from jupyter_server.auth import decorator as decorators
from jupyter_server.auth.identity import PasswordIdentityProvider
from jupyterhub.services.auth import HubOAuth
from jupyterhub.singleuser.extension import JupyterHubIdentityProvider, JupyterHubUser
from tornado.httpclient import HTTPClientError
from tornado.web import RequestHandler

from jupyter_hyperpod.server.handlers import ROOT
from jupyter_hyperpod.server.hub_scopes import OPERATE, READ, HubScopesAuthorizer
from jupyter_hyperpod.storage.journal import follow_commands
from tests.server.conftest import Api, MakeJob
from tests.server.test_api import FILE, operations, resource_of

KINDS = [f"jupyter_hyperpod.{kind}" for kind in ("settings", "jobs", "faults", "cluster", "files", "runs")]
RIGHTS: dict[str, set[tuple[str, str]]] = {
    "reader": {("read", kind) for kind in KINDS},
    "operator": {("read", kind) for kind in KINDS} | {("write", "jupyter_hyperpod.jobs")},
}
HEADER = "X-Person"


class TwoPeople(PasswordIdentityProvider):
    """The header of a request, whose token is checked first, says who asks."""

    def generate_anonymous_user(self, handler: Any) -> User:
        name = handler.request.headers.get(HEADER, "")
        return User(name, name.title(), "The same name")


SERVER = {"jpserver_extensions": {"jupyter_hyperpod": True}, "identity_provider_class": TwoPeople}


@pytest.mark.parametrize("server_config", [{"ServerApp": SERVER}])
async def test_each_person_gets_what_the_authorizer_allows(
    openapi: dict[str, Any], api: Api, jp_serverapp: Any, jp_fetch: Any, jp_ws_fetch: Any, make_job: MakeJob
) -> None:
    class PerPerson(type(jp_serverapp.authorizer)):  # type: ignore[misc]
        rights = RIGHTS

        def is_authorized(self, handler: Any, user: User, action: str, resource: str) -> bool:
            return (action, resource) in self.rights[user.username]

    jp_serverapp.web_app.settings["authorizer"] = PerPerson(parent=jp_serverapp)
    job, wrong, tried = make_job(nodes=2), [], 0
    rights = [*RIGHTS.items(), ("nobody", set[tuple[str, str]]())]
    for kind in KINDS:  # one person per single right, too
        rights += [(f"{action}-{kind}", {(action, kind)}) for action in ("read", "write")]
    PerPerson.rights = dict(rights)
    for person, allowed in rights:
        for method, path in operations(openapi):
            action, resource = ("read" if method == "GET" else "write"), resource_of(path)
            place, header = path.format(id=job.id, path=FILE), {HEADER: person}
            expected = (action, resource) in allowed
            if path == "/stream":
                found = await _opens(jp_ws_fetch, person)
            elif expected and method != "GET":
                # the body is refused, which is after the authorizer: nothing is changed
                status, answer = await api(
                    method,
                    path.format(id=job.id, path=FILE),
                    b"{",
                    headers={HEADER: person},
                    allow_nonstandard_methods=True,
                )
                found = not (status == 403 and "not authorized" in answer["message"])
            elif path == "/metrics":  # its answer is not JSON
                found = await _reads(jp_fetch, path, person)
            else:
                status, answer = await api(method, place, headers=header)
                found = not (status == 403 and "not authorized" in str(answer))
            tried += 1
            if found != expected:
                wrong.append((person, method, path, found))
    assert wrong == []
    assert tried == len(rights) * len(operations(openapi)) and tried > 200
    assert follow_commands(job.commands).poll() == []


async def _reads(jp_fetch: Any, path: str, person: str) -> bool:
    try:
        await jp_fetch(*f"{ROOT}{path}".strip("/").split("/"), headers={HEADER: person})
    except HTTPClientError as error:
        assert error.code == 403
        return False
    return True


async def _opens(jp_ws_fetch: Any, person: str) -> bool:
    try:
        socket = await jp_ws_fetch(*ROOT.strip("/").split("/"), "stream", headers={HEADER: person})
    except HTTPClientError as error:
        assert error.code == 403
        return False
    socket.close()
    return True


@pytest.mark.parametrize("server_config", [{"ServerApp": SERVER}])
async def test_a_command_carries_the_user_name_of_the_identity_provider(api: Api, make_job: MakeJob) -> None:
    """Two people may show the same name; their user names differ."""
    job = make_job(nodes=2)
    for person in ("operator", "reader"):
        assert (await api("POST", f"/jobs/{job.id}/stop", headers={HEADER: person}))[0] == 202
    assert [command.data["by"]["identity"] for command in follow_commands(job.commands).poll()] == [
        "operator",
        "reader",
    ]


ACTIONS = ("read", "write", "execute")
RESOURCES = [*KINDS, "api", "contents", "kernels", "terminals", "unnamed"]
READER = {("read", f"jupyter_hyperpod.{kind}") for kind in ("settings", "jobs", "cluster")} | {("read", "api")}
OPERATOR = READER | {("write", f"jupyter_hyperpod.{kind}") for kind in ("jobs", "faults")}
EVERYTHING = {(action, resource) for action in ACTIONS for resource in RESOURCES}
NOTHING: set[tuple[str, str]] = set()


@pytest.mark.parametrize(
    ("kind", "name", "scopes", "expected"),
    [
        ("user", "ada", [], EVERYTHING),
        ("service", "ada", [], NOTHING),
        ("user", "bob", [], NOTHING),
        ("user", "bob", ["access:servers!server=ada/lab"], NOTHING),
        ("user", "bob", ["admin:servers", "access:servers"], NOTHING),
        ("user", "bob", [READ], READER),
        ("user", "bob", [f"{READ}!user=ada"], READER),
        ("user", "bob", [f"{READ}!server=ada/lab"], READER),
        ("user", "bob", [f"{READ}!server=ada/", f"{READ}!server=ada/other", f"{READ}!user=bob"], NOTHING),
        ("user", "bob", [READ, f"{OPERATE}!server=ada/lab"], OPERATOR),
        ("user", "bob", [READ, f"{OPERATE}!user=bob"], READER),
        ("service", "watch", [READ], READER),
        ("user", "bob", ["custom:jupyter_server:read:contents"], {("read", "contents")}),
        (
            "user",
            "bob",
            ["custom:jupyter_server:write:jupyter_hyperpod:cluster"],
            {("write", "jupyter_hyperpod.cluster")},
        ),
        ("user", "bob", ["custom:jupyter_server:read:*"], {("read", resource) for resource in RESOURCES}),
        ("user", "bob", [f"custom:jupyter_server:{action}:*!server=ada/lab" for action in ACTIONS], EVERYTHING),
    ],
)
def test_the_scopes_of_a_hub(
    monkeypatch: pytest.MonkeyPatch, kind: str, name: str, scopes: list[str], expected: set[tuple[str, str]]
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setenv("JUPYTERHUB_SERVER_NAME", "lab")
    hub = JupyterHubIdentityProvider(hub_auth=HubOAuth(oauth_client_id="of-a-test", api_token="of-a-test"))
    authorizer = HubScopesAuthorizer(identity_provider=hub)
    user = JupyterHubUser({"kind": kind, "name": name, "scopes": scopes})
    assert {pair for pair in EVERYTHING if authorizer.is_authorized(None, user, *pair)} == expected
    monkeypatch.setenv("JUPYTERHUB_USER", "")
    assert not any(authorizer.is_authorized(None, user, *pair) for pair in EVERYTHING)


def test_nobody_is_authorized_where_no_hub_says_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    authorizer = HubScopesAuthorizer(identity_provider=PasswordIdentityProvider())
    assert not any(authorizer.is_authorized(None, User("ada"), *pair) for pair in EVERYTHING)


# websockets of Jupyter that need no decorator, and the method in which they ask
SOCKETS = {"KernelWebsocketHandler": "pre_get", "SubscribeWebsocket": "pre_get", "TermSocket": "get"}
ALL = dict.fromkeys(("jupyter_hyperpod", "jupyterlab", "jupyter_server_terminals"), True)


@pytest.mark.parametrize("server_config", [{"ServerApp": {"jpserver_extensions": ALL}}])
def test_each_handler_that_names_a_resource_asks_about_it(jp_serverapp: Any) -> None:
    """`HubScopesAuthorizer.admits` leaves these to the authorizer, Jupyter's own among them, whatever the method."""
    found = {*_handlers(jp_serverapp.web_app.default_router.rules)}
    handlers = {
        handler for handler in found if issubclass(handler, RequestHandler) and hasattr(handler, "auth_resource")
    }
    names = {handler.__name__ for handler in handlers}
    assert {"StopHandler", "MainKernelHandler", "TerminalRootHandler"} <= names
    careless = {
        f"{verb} of {handler.__module__}.{handler.__name__}"
        for handler in handlers
        for verb in ("get", "head", "post", "put", "patch", "delete")
        if getattr(handler, verb) is not getattr(RequestHandler, verb)
        and not _asks(getattr(handler, verb))
        and not (verb == "get" and _asks_itself(handler))
    }
    assert careless == set()


def _handlers(rules: Any) -> Iterator[type]:
    for rule in rules:
        if isinstance(rule.target, type):
            yield rule.target
        elif hasattr(rule.target, "rules"):
            yield from _handlers(rule.target.rules)


def _asks(method: Callable[..., Any] | None) -> bool:
    """Whether a method is, below other decorators, one that `authorized` made."""
    while method is not None:
        if method.__code__.co_filename == decorators.__file__ and "authorizer" in method.__code__.co_names:
            return True
        method = getattr(method, "__wrapped__", None)
    return False


def _asks_itself(handler: type) -> bool:
    method = getattr(handler, SOCKETS.get(handler.__name__, ""), None)
    return method is not None and "is_authorized" in inspect.unwrap(method).__code__.co_names
