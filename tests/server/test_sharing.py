"""Sharing over REST: whose a store is, with whom it is shared, who may change that, and refusals in plain words."""

from __future__ import annotations

import grp
import os
from typing import Any

import pytest

from jupyter_hyperpod.control.teams import share
from jupyter_hyperpod.server import run_handlers
from jupyter_hyperpod.storage import sharing
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.users import own_name
from tests.server.conftest import Api, MakeJob
from tests.server.test_api import check

GROUP = grp.getgrgid(os.getgid()).gr_name


async def told(api: Api, openapi: dict[str, Any]) -> dict[str, Any]:
    status, found = await api("GET", "/sharing")
    assert status == 200, found
    check(openapi, "Sharing", found)
    answer: dict[str, Any] = found
    return answer


async def test_an_owner_shares_and_ends_it(api: Api, openapi: dict[str, Any], make_job: MakeJob, store: Store) -> None:
    job = make_job()
    found = await told(api, openapi)
    assert (found["owner"], found["role"], found["read"], found["operate"]) == (own_name(), "owner", "", "")
    assert GROUP in found["groups"] and found["store"] == str(store.root)
    status, found = await api("POST", "/sharing/change", {"read": "", "operate": GROUP})
    assert status == 200, found
    check(openapi, "Sharing", found)
    assert (found["read"], found["operate"]) == (GROUP, GROUP), "who operates reads"
    assert sharing.sharing_of(store.root) == sharing.Sharing(os.getgid(), os.getgid())
    assert job.path.stat().st_mode & 0o7777 == 0o2750
    status, found = await api("POST", "/sharing/change", {"read": f" {GROUP} ", "operate": ""})
    assert (found["read"], found["operate"]) == (GROUP, "")
    status, found = await api("POST", "/sharing/change", {"read": "", "operate": ""})
    assert status == 200 and found["read"] == "" and sharing.sharing_of(store.root) is None
    assert job.path.stat().st_mode & 0o7777 == 0o700


async def test_refusals_are_plain(api: Api, make_job: MakeJob, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job()
    status, answer = await api("POST", "/sharing/change", {"read": "no-such-group", "operate": ""})
    assert status == 400 and answer["message"].startswith("there is no group 'no-such-group' on this system")

    def full(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", full)
    status, answer = await api("POST", "/sharing/change", {"read": GROUP, "operate": ""})
    assert status >= 400 and f"cannot be given to the group {GROUP}: you must be in it" in answer["message"]
    assert (await api("POST", "/sharing/change", {"read": GROUP}))[0] == 400


@pytest.mark.parametrize(
    ("rights", "role"),
    [
        ({("read", "jobs")}, "read"),
        ({("read", "jobs"), ("write", "jobs")}, "operate"),
        ({("read", "jobs"), ("write", "jobs"), ("write", "runs")}, "owner"),
    ],
)
async def test_each_person_is_told_what_they_may_do(
    api: Api, jp_serverapp: Any, make_job: MakeJob, store: Store, rights: set[tuple[str, str]], role: str
) -> None:
    make_job()

    class Somebody(type(jp_serverapp.authorizer)):  # type: ignore[misc]
        def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
            return (action, resource.rpartition(".")[2]) in rights

    jp_serverapp.web_app.settings["authorizer"] = Somebody(parent=jp_serverapp)
    status, found = await api("GET", "/sharing")
    assert (status, found["role"]) == (200, role)
    assert bool(found["groups"]) == (role == "owner")
    status, _ = await api("POST", "/sharing/change", {"read": GROUP, "operate": ""})
    assert status == (200 if role == "owner" else 403)
    assert (sharing.sharing_of(store.root) is not None) == (role == "owner")


async def test_who_sees_no_jobs_is_not_told_whose_they_are() -> None:
    assert run_handlers.SharingHandler.auth_resource == "jupyter_hyperpod.jobs"
    assert run_handlers.SharingChangeHandler.auth_resource == "jupyter_hyperpod.runs"


def test_a_member_of_the_group_is_told_the_owner(
    make_job: MakeJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job()
    share.change(store, GROUP, "")
    monkeypatch.setattr(sharing, "owner_elsewhere", lambda root: "ada")
    found = share.told(store)
    assert (found["owner"], found["own"], found["operates"], found["notes"]) == ("ada", False, False, [])
    share.change(store, "", GROUP)
    assert share.told(store)["operates"]
