"""The run table over REST: rows and their changes, search in sources, labels and deletion, and who may do that."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.runs import labels, run_record, run_table
from jupyter_hyperpod.control.runs.run_table import RunTable
from jupyter_hyperpod.core.spec import TrialSpec
from jupyter_hyperpod.server import run_handlers
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.resources.node_uses import FOLDER
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.server.client import Client
from tests.server.conftest import ROOT, Api, MakeJob
from tests.server.test_api import check


def ended(job: JobStore, steps: int = 4, state: str = "succeeded") -> JobStore:
    """Write a short run, whose second half of the time was no step."""
    member = {"member": "node-1.1", "node": "node-1", "rank": 0, "pid": 1}
    moments = iter([1000.0, *(1001.0 + step for step in range(steps)), *[1001.0 + 2 * steps] * 2])
    with event_writer(job.events, "coordinator", clock=lambda: next(moments)) as journal:
        formed = {"generation": 1, "members": [member], "spares": [], "target": 1, "reason": "ready"}
        journal.append("generation.formed", formed)
        for step in range(1, steps + 1):
            loss = 1.0 / step
            committed = {"step": step, "generation": 1, "loss": loss, "loss_hex": loss.hex(), "step_time_s": 1.0}
            journal.append("step.committed", committed | {"samples": 8, "world_size": 1, "redone": 0})
        journal.append("metric.logged", {"step": steps, "values": {"accuracy": 0.5, "odd": "text", "bad": None}})
        journal.append("job.state", {"state": state, "reason": "every rank finished"})
    return job


async def rows_of(api: Api, query: str = "") -> dict[str, Any]:
    status, answer = await api("GET", "/runs", params=dict(pair.split("=") for pair in query.split("&") if pair))
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


async def test_each_job_has_a_row_and_only_changes_come_again(api: Api, make_job: MakeJob, store: Store) -> None:
    first = ended(make_job("first", nodes=1, seed=7, priority=3, queue="team", source="lr = 0.1\n"))
    trial = TrialSpec("sweep-abcdefgh", 3, {"lr": 0.5})
    second = make_job("second", nodes=2, origin={"notebook": "/work/a.ipynb"}, trial=trial)
    found = await rows_of(api)
    assert found["whole"] and found["unread"] == 0
    rows = {row["id"]: row for row in found["rows"]}
    assert set(rows) == {first.id, second.id}
    row = rows[first.id]
    assert (row["state"], row["step"], row["loss"], row["metrics"]) == ("succeeded", 4, 0.25, {"accuracy": 0.5})
    assert (row["priority"], row["queue"], row["nodes"]) == (3, "team", 1)
    assert row["parameters"]["seed"] == "7" and row["person"]
    assert rows[second.id]["notebook"] == "/work/a.ipynb" and rows[second.id]["state"] == "pending"
    told = rows[second.id]["parameters"]
    assert (told["trial"], told["lr"]) == ("3 of sweep-abcdefgh", "0.5")
    assert row["goodput"] is None and found["unfinished"] == 1

    place = f"since={found['version']}&instance={found['instance']}"
    after, told = await rows_of(api, place), run_record.read(store, first.id).time.goodput
    assert [(row["id"], row["goodput"]) for row in after["rows"]] == [(first.id, round(told or 0, 5))], (
        "what the report says"
    )
    assert not after["whole"] and after["unfinished"] == 0
    place = f"since={after['version']}&instance={found['instance']}"
    assert (await rows_of(api, place))["rows"] == []
    ended(second, 2, "failed")
    assert [row["state"] for row in (await rows_of(api, place))["rows"]] == ["failed"]
    assert (await rows_of(api, "since=99&instance=other"))["whole"]


async def test_labels_and_deletion(api: Api, make_job: MakeJob, store: Store) -> None:
    jobs = [ended(make_job(name)) for name in ("first", "second")]
    labels.label(store, jobs[0].id, add=["old"])
    before = await rows_of(api)
    both = {"jobs": [job.id for job in jobs]}
    status, _ = await api("POST", "/runs/labels", both | {"add": ["best"], "remove": ["old"], "note": "look"})
    assert status == 200
    place = f"since={before['version']}&instance={before['instance']}"
    rows = (await rows_of(api, place))["rows"]
    assert [(row["tags"], row["note"]) for row in rows] == [(["best"], "look")] * 2
    status, answer = await api("POST", "/runs/labels", both | {"add": ["no tag"]})
    assert status == 400 and "cannot be a tag" in answer["message"]

    running = make_job("third")
    status, answer = await api("POST", "/runs/delete", {"jobs": [jobs[0].id, running.id]})
    assert status == 409 and "is pending" in answer["message"]
    assert jobs[0].path.is_dir(), "all or none"
    status, answer = await api("POST", "/runs/delete", {"jobs": [jobs[0].id]})
    assert status == 200 and answer["said"].startswith(f"deleted: {jobs[0].id}")
    after = await rows_of(api, place)
    assert after["gone"] == [jobs[0].id] and {row["id"] for row in after["rows"]} == {jobs[1].id, running.id}


async def test_words_are_found_in_sources(api: Api, make_job: MakeJob) -> None:
    job = make_job("first", source="class Wide(Model): ...\n")
    make_job("second", source="print(1)\n")
    rows = {row["id"]: row for row in (await rows_of(api))["rows"]}
    _, answer = await api("GET", "/runs/sources", params={"word": "wide(m"})
    assert answer == {"found": {"wide(m": [rows[job.id]["code"]]}}


async def test_long_answers_are_compressed(api: Api, make_job: MakeJob, jp_fetch: Any) -> None:
    for number in range(12):
        make_job(f"job{number}")
    asked = {"headers": {"Accept-Encoding": "gzip"}, "decompress_response": False}
    answer = await jp_fetch(*f"{ROOT}/runs".split("/"), **asked)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(answer.body))["rows"]) == 12


async def test_the_list_of_jobs_follows_labels_of_jobs_that_have_ended(
    connect: Callable[[], Awaitable[Client]], make_job: MakeJob, store: Store
) -> None:
    job = ended(make_job("first"))
    client = await connect()
    await client.subscribe("jobs")

    async def tags() -> list[str]:
        await client.read(30)
        return next((one["labels"]["tags"] for one in client.jobs or [] if one["id"] == job.id), [])

    await tags()
    labels.label(store, job.id, add=["best"])
    while await tags() != ["best"]:
        pass


@pytest.mark.parametrize("extension_config", [{"jobs_listed": 2}])
async def test_archived_jobs_leave_the_list_and_its_count_unless_they_run(
    api: Api, connect: Callable[[], Awaitable[Client]], make_job: MakeJob
) -> None:
    running = make_job("running")
    jobs = [ended(make_job(f"job{number}")) for number in range(4)]
    client = await connect()
    await client.subscribe("jobs")

    async def shows(listed: list[str], older: int) -> None:
        await client.until(lambda: [one["id"] for one in client.jobs or []] == listed and client.older == older)

    async def archive(names: list[str], archived: bool = True) -> None:
        assert (await api("POST", "/runs/labels", {"jobs": names, "archived": archived}))[0] == 200

    await shows([jobs[3].id, jobs[2].id, running.id], 2)
    await archive([jobs[3].id, jobs[0].id, running.id])
    await shows([jobs[2].id, running.id], 1)
    late = await connect()
    await late.subscribe("jobs")
    await late.until(lambda: [one["id"] for one in late.jobs or []] == [jobs[2].id, running.id] and late.older == 1)
    await archive([jobs[3].id, jobs[0].id], False)
    await shows([jobs[3].id, jobs[2].id, running.id], 2)


def test_a_table_reads_a_job_that_has_ended_once(
    store: Store, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [ended(make_job(f"job{number}")) for number in range(3)]
    for job in jobs:
        os.utime(job.events, (time.time() - 60, time.time() - 60))
    read: list[str] = []
    real = run_table.FoldedJournal
    monkeypatch.setattr(run_table, "FoldedJournal", lambda job: read.append(job.id) or real(job))  # type: ignore[func-returns-value]
    table = RunTable(store)
    table.changes()
    assert sorted(read) == sorted(job.id for job in jobs)
    read.clear()
    table.changes()
    assert read == []
    labels.label(store, jobs[0].id, note="again")
    assert [row["note"] for row in table.changes(1, table.changes()["instance"])["rows"] if row["note"]] == ["again"]
    assert set(read) == {jobs[0].id}


def test_new_jobs_are_read_a_part_at_a_time(store: Store, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        make_job(f"job{number}")
    monkeypatch.setattr(run_table, "FIRST_S", -1.0)
    assert RunTable(store).changes()["unread"] == 3
    monkeypatch.undo()
    assert RunTable(store).changes()["unread"] == 0


def test_jobs_that_are_known_take_no_time_from_new_ones(
    store: Store, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        make_job(f"job{number}")
    for name in ("FIRST_S", "READ_S"):  # a machine so slow that the time is over after one job
        monkeypatch.setattr(run_table, name, 1e-9)
    table = RunTable(store)
    assert [table.changes()["unread"] for _ in range(4)] == [3, 2, 1, 0]


def test_rows_are_encoded_as_the_whole_answer_would_be() -> None:
    answer = {"version": 1, "rows": [{"id": "a", "name": "ü"}, {"id": "b"}], "unread": 0}
    assert json.loads(run_handlers._encoded(dict(answer))) == answer
    assert json.loads(run_handlers._encoded({"rows": []})) == {"rows": []}


async def test_jobs_are_compared(openapi: dict[str, Any], api: Api, make_job: MakeJob) -> None:
    jobs = [
        ended(make_job("first", source="lr = 1\n"), 4),
        ended(make_job("second", nodes=3, source="lr = 2\n"), 3),
    ]
    status, found = await api("GET", "/comparison", params=[("job", job.id) for job in jobs])
    assert status == 200
    check(openapi, "Comparison", found)
    assert "until step 3" in found["identity"][0]["sentence"]
    assert found["runs"][1]["source_difference"][-2:] == ["-lr = 1", "+lr = 2"]
    assert found["differences"]["parameters"]["nodes"] == ["2", "3"]
    assert [place[0] for place in found["curves"]["loss"][0]] == [1, 2, 3, 4]
    assert found["times_s"]["loss"][0] == sorted(found["times_s"]["loss"][0]) and found["environments"]
    status, answer = await api("GET", "/comparison", params={"job": jobs[0].id})
    assert status == 400 and "alone cannot be compared" in answer["message"]


def authorize(server: Any, without: str) -> None:
    """Let everybody do everything, but nothing with the resource ``without``."""

    class SomeRights(type(server.authorizer)):  # type: ignore[misc]
        def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
            return resource != without

    server.web_app.settings["authorizer"] = SomeRights(parent=server)


@pytest.mark.parametrize("allowed", [True, False])
async def test_environments_are_compared_for_those_who_may_read_everything_about_runs(
    api: Api, jp_serverapp: Any, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    authorize(jp_serverapp, "" if allowed else "jupyter_hyperpod.runs")
    taken = iter([{"python": {"version": version}} for version in ("3.11", "3.12")])
    monkeypatch.setattr(run_record.fingerprints, "of_job", lambda path: next(taken))
    asked = [("job", make_job(name).id) for name in ("first", "second")]
    _, found = await api("GET", "/comparison", params=asked)
    assert found["differences"]["environment"] == ({"Python": ["3.11", "3.12"]} if allowed else {})
    assert found["environments"] is allowed


async def test_where_the_time_of_a_job_went_and_its_curves(api: Api, make_job: MakeJob) -> None:
    job = ended(make_job("first"), 4)
    status, found = await api("GET", f"/jobs/{job.id}/account")
    assert status == 200
    taken = found["useful"] + sum(part["node_seconds"] for part in found["lost"])
    assert found["goodput"] == pytest.approx(found["useful"] / taken) and 0 < found["goodput"] < 1
    parts = [part["node_seconds"] for part in found["lost"]]
    assert parts == sorted(parts, reverse=True) and all(part["cause"] for part in found["lost"])
    assert [place[0] for place in found["curves"]["loss"][0]] == [1, 2, 3, 4]
    assert found["curves"]["accuracy"] == [[[4, 0.5, 0.5, 0.5]]] and len(found["times_s"]["accuracy"][0]) == 1
    assert "first trained 4 steps" in found["sentence"]

    waits = make_job("second")
    status, found = await api("GET", f"/jobs/{waits.id}/account")
    assert (status, found["goodput"], found["lost"]) == (200, None, [])
    assert (await api("GET", "/jobs/nothing-abcdefgh/account"))[0] == 404


async def test_a_loss_that_is_text_costs_one_step_and_no_answer(api: Api, make_job: MakeJob) -> None:
    job = ended(make_job("first"), 4)
    (path,) = job.events.glob("coordinator*.jsonl")
    path.write_text(path.read_text().replace('"loss":0.5,', '"loss":"0.5",'))
    for name in ("account", "report"):
        status, found = await api("GET", f"/jobs/{job.id}/{name}")
        assert status == 200, found
    _, found = await api("GET", f"/jobs/{job.id}/account")
    assert [place[0] for place in found["curves"]["loss"][0]] == [1, 3, 4]


@pytest.mark.parametrize("allowed", [True, False])
async def test_what_the_nodes_of_a_job_use(api: Api, jp_serverapp: Any, make_job: MakeJob, allowed: bool) -> None:
    authorize(jp_serverapp, "" if allowed else "jupyter_hyperpod.jobs")
    job = make_job("first")
    status, found = await api("GET", f"/jobs/{job.id}/resources")
    if not allowed:
        assert status == 403
        return
    assert (status, found["nodes"], found["curves"], found["times_s"]) == (200, 0, {}, [])
    moments = iter([1000.0, 1010.0])
    (job.path / FOLDER).mkdir()
    with event_writer(job.path / FOLDER, "coordinator", clock=lambda: next(moments)) as journal:
        for cpu_ms in (5_000, 20_000):
            values = {"ms": 10_000, "cpu_ms": [cpu_ms, 0], "cores": 2, "memory": [1 << 30, 1 << 20], "limit": 1 << 34}
            values |= {"steps": [4, 4], "compute_ms": [2500, 5000], "exchange_ms": 1000, "waits_ms": [2500, 0]}
            journal.append("nodes.sampled", {"nodes": ["node-10", "node-2"], "values": values, "every_s": 10.0})
    status, found = await api("GET", f"/jobs/{job.id}/resources")
    assert (status, found["lines"], found["many"]) == (200, ["node-2", "node-10"], False)
    assert found["curves"] == {"cpu": [[0, 0], [25, 100]], "memory": [[1 << 20, 1 << 20], [1 << 30, 1 << 30]]}
    assert (found["start_s"], found["times_s"]) == (1000, [0, 10])
    assert found["width_s"] == 1 and found["phases"] == {
        "node-10": {"compute": [250, 250], "exchange": [100, 100], "waits": [250, 250], "steps": [4, 4]},
        "node-2": {"compute": [500, 500], "exchange": [100, 100], "waits": [0, 0], "steps": [4, 4]},
    }
    assert found["sparks"]["node-10"] == {"cpu": [25, 100]} and found["limits"]["limit"] == 1 << 34
    assert (await api("GET", "/jobs/nothing-abcdefgh/resources"))[0] == 404


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_report_has_the_environment_for_those_who_may_read_it(
    api: Api, jp_serverapp: Any, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    authorize(jp_serverapp, "" if allowed else "jupyter_hyperpod.runs")
    monkeypatch.setattr(run_record.fingerprints, "of_job", lambda path: {"python": {"version": "3.11.99"}})
    job = ended(make_job("first"))
    status, found = await api("GET", f"/jobs/{job.id}/report")
    assert status == 200 and found["page"].startswith("<!doctype html>") and "first trained 4 steps" in found["page"]
    assert ("3.11.99" in found["page"]) is allowed
    assert (await api("GET", "/jobs/nothing-abcdefgh/report"))[0] == 404


async def test_a_job_is_promoted_by_a_plan_and_a_person(
    openapi: dict[str, Any], api: Api, make_job: MakeJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job("study", nodes=2, backend="slurm", source="print('hello')\n")
    status, found = await api("POST", f"/jobs/{job.id}/promotion", {"backend": "local", "nodes": 3, "name": "grown"})
    assert status == 200
    check(openapi, "Promotion", found)
    assert (found["nodes"], found["name"], found["code"]) == (3, "grown", job.spec().cell_digest)
    assert [change["name"] for change in found["changes"] if change["asks"]] == ["the environment"]
    status, answer = await api("POST", f"/jobs/{job.id}/promote", {"backend": "local"})
    assert status == 409 and "would not run as it did" in answer["message"]
    status, answer = await api("POST", f"/jobs/{job.id}/promotion", {"backend": "slurm"})
    assert status == 400 and "choose another backend" in answer["message"]
    assert store.job_ids() == [job.id]

    monkeypatch.setattr(jobs, "_wake", lambda store, job: None)  # no cluster is started here
    status, answer = await api("POST", f"/jobs/{job.id}/promote", {"backend": "local", "accept": True})
    assert status == 201
    new = store.job(answer["id"]).spec()
    assert (new.backend, new.cell_digest, new.origin["promoted_from"]) == ("local", job.spec().cell_digest, job.id)
