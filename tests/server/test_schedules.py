"""Schedules and executed notebooks over REST: what is listed, what is done, and what is refused."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.schedules import schedule_file, waking
from jupyter_hyperpod.control.schedules.schedule_file import Schedule, ScheduledRun
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.storage.store import Store
from tests.runs.test_executed_notebook import Scene
from tests.server.conftest import Api, MakeJob
from tests.server.test_api import check
from tests.server.test_runs import ended


def scheduled(store: Store, name: str, *runs: ScheduledRun, **more: Any) -> None:
    schedule = Schedule(name, "30 6 * * mon-fri", "Europe/Berlin", 1000.0, time.time(), "ada", **more)
    schedule_file.create(store, "print(1)\n", {"name": name}, schedule)
    schedule_file.write(store, replace(schedule, runs=runs))


async def listed(api: Api, openapi: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    status, found = await api("GET", "/schedules")
    assert status == 200, found
    check(openapi, "Schedules", found)
    return {one["name"]: one for one in found["schedules"]}, found["notes"]


async def test_schedules_are_listed_with_their_runs(
    openapi: dict[str, Any], api: Api, store: Store, make_job: MakeJob
) -> None:
    assert await listed(api, openapi) == ({}, [])
    job = ended(make_job("nightly"))
    done = [ScheduledRun(float(number), "", "the disk is full") for number in range(30)]
    gone = ScheduledRun(90.0, "nightly-aaaaaaaa", "due", asked=True)
    scheduled(store, "nightly", *done, gone, ScheduledRun(91.0, job.id, "due"))
    scheduled(store, "later", paused=True)
    scheduled(store, "broken")
    (schedule_file.directory(store, "broken").path / "spec.json").write_text("{")
    found, notes = await listed(api, openapi)
    assert set(found) == {"nightly", "later"}
    assert [note for note in notes if "broken" in note] and "no cluster is running" in notes[-1]
    nightly = found["nightly"]
    assert nightly["words"] == "At 06:30 on Monday through Friday" and nightly["next_s"] > time.time()
    assert len(nightly["runs"]) == 20, "the newest"
    assert [(run["job"], run["state"], run["asked"]) for run in nightly["runs"][-3:]] == [
        ("", "", False),
        (gone.job, "", True),
        (job.id, "succeeded", False),
    ]
    assert (found["later"]["state"], found["later"]["next_s"]) == ("paused", None)


async def test_a_schedule_is_paused_resumed_run_and_deleted(
    openapi: dict[str, Any], api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_wake", lambda store, job: None)  # no cluster is started here
    woken: list[str] = []
    monkeypatch.setattr(waking, "wake", lambda store, backend: woken.append(backend))
    scheduled(store, "nightly")

    async def ask(action: str, name: str = "nightly") -> tuple[int, Any]:
        return await api("POST", "/schedules", {"schedule": name, "action": action})

    assert (await ask("pause"))[0] == 200 and woken == []
    assert (await listed(api, openapi))[0]["nightly"]["state"] == "paused"
    assert (await ask("resume"))[0] == 200 and woken == ["local"]
    status, answer = await ask("run")
    assert status == 200
    assert jobs.job_view(store, answer["job"])["labels"]["tags"] == ["nightly"]
    (run,) = (await listed(api, openapi))[0]["nightly"]["runs"]
    assert (run["job"], run["state"], run["asked"]) == (answer["job"], "pending", True)

    def full(*_: Any, **__: Any) -> None:
        raise ClusterError("there is no room")

    monkeypatch.setattr(jobs, "submit", full)
    status, answer = await ask("run")
    assert status == 409 and "there is no room" in answer["message"]
    assert (await ask("delete"))[0] == 200
    assert (await listed(api, openapi))[0] == {}
    status, answer = await ask("pause")
    assert status == 404 and "no schedule 'nightly'" in answer["message"]
    for name, action in (("nightly", "forget"), ("../jobs", "delete")):
        status, answer = await ask(action, name)
        assert status == 400, answer


async def test_a_store_of_another_user_has_no_schedules_here(api: Api, store: Store) -> None:
    scheduled(store, "nightly")
    store.root.chmod(0o777)
    for method in ("GET", "POST"):
        body = {"schedule": "nightly", "action": "delete"} if method == "POST" else None
        status, _ = await api(method, "/schedules", body)
        assert status == 507
    assert schedule_file.names(store) == ["nightly"]


async def test_the_executed_notebook_of_a_job(api: Api, store: Store, tmp_path: Path, make_job: MakeJob) -> None:
    scene = Scene(tmp_path, filename=str(tmp_path / "book.ipynb"))
    scene.begin(1)
    scene.begin(3)
    scene.print("printed\n")
    scene.relay.flush()
    status, found = await api("GET", f"/jobs/{scene.job.id}/notebook")
    assert (status, found["id"], found["origin"]) == (200, scene.job.id, str(tmp_path / "book.ipynb"))
    notebook = found["notebook"]
    assert notebook["cells"][3]["outputs"][0]["text"] == "printed\n"
    assert notebook["metadata"]["hyperpod"]["running_cell"] == 3
    status, answer = await api("GET", f"/jobs/{make_job().id}/notebook")
    assert status == 409 and "was not submitted as a notebook" in answer["message"]
    assert (await api("GET", "/jobs/nothing-abcdefgh/notebook"))[0] == 404
