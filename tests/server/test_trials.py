"""Sweeps over REST, for parallel coordinates: axes, what counts, the best, what is new, and who may see it."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_hyperpod.control import housekeeping
from jupyter_hyperpod.control.sweeps.plan import SweepPlan, job_name
from jupyter_hyperpod.control.sweeps.trials import read
from jupyter_hyperpod.core.spec import TrialSpec
from jupyter_hyperpod.policy.sweeps import space
from jupyter_hyperpod.server import run_handlers
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.server.conftest import Api, MakeJob
from tests.server.test_api import check

SWEEP = "first-abcdefgh"
PLAN = SweepPlan.make(
    space.parse(["lr=1e-4..1e-1:log", "width=8,32", "kind=adam,sgd"]), sampler="random", trials=5, metric="accuracy"
)


def trial(make_job: MakeJob, number: int, maximize: bool = True, **values: Any) -> JobStore:
    plan = PLAN.to_json() | {"maximize": maximize}
    return make_job(job_name(SWEEP, number), trial=TrialSpec(SWEEP, number, values, plan))


def end(job: JobStore, accuracy: float | None, state: str = "succeeded", reason: str = "every rank finished") -> None:
    with event_writer(job.events, "coordinator") as journal:
        if accuracy is not None:
            journal.append("metric.logged", {"step": 1, "values": {"accuracy": accuracy}})
        journal.append("job.state", {"state": state, "reason": reason})


async def drawn(api: Api, openapi: dict[str, Any], **asked: Any) -> dict[str, Any]:
    params = [(name, one) for name, value in asked.items() for one in (value if isinstance(value, list) else [value])]
    status, found = await api("GET", "/trials", params=params)
    assert status == 200, found
    check(openapi, "Trials", found)
    told: dict[str, Any] = found
    return told


async def test_a_sweep_has_axes_and_the_same_best_trial_as_everywhere(
    api: Api, make_job: MakeJob, store: Store, openapi: dict[str, Any]
) -> None:
    jobs = [trial(make_job, n, lr=10.0**-n, width=8, kind="adam") for n in (1, 2, 3)]
    end(jobs[0], 0.5)
    end(jobs[1], 0.75)
    end(jobs[2], 0.9, "stopped", "pruned: 2 others were better at step 1")
    found = await drawn(api, openapi, sweep=SWEEP)
    assert [(one["name"], one["kind"]) for one in found["axes"]] == [
        ("lr", "numbers"),
        ("width", "numbers"),
        ("kind", "words"),
    ]
    rate, width, kind = found["axes"]
    assert rate["logarithmic"] and (rate["low"], rate["high"]) == (1e-4, 0.1)
    assert not width["logarithmic"] and width["at"] == [8.0, 32.0] and kind["values"] == ["adam", "sgd"]
    assert (found["metric_axis"]["low"], found["metric_axis"]["high"]) == (0.5, 0.75), "only what counts has a place"
    assert (found["best"], found["wanted"], found["live"], found["maximize"]) == (jobs[1].id, 5, False, True)
    best = read(store, SWEEP).best
    assert best is not None and best.job.id == found["best"]
    assert [(one["state"], one["value"], one["counted"]) for one in found["trials"]] == [
        ("succeeded", 0.5, 0.5),
        ("succeeded", 0.75, 0.75),
        ("pruned", 0.9, None),
    ]
    assert found["trials"][0]["told"] == {"lr": "0.1", "width": "8", "kind": "adam"}


async def test_a_later_answer_has_what_is_new(
    api: Api, make_job: MakeJob, store: Store, openapi: dict[str, Any]
) -> None:
    first = trial(make_job, 1, lr=0.1, width=8, kind="sgd")
    found = await drawn(api, openapi, sweep=SWEEP)
    assert (found["best"], found["live"], found["metric_axis"]) == ("", True, None)
    end(first, 0.5)
    assert (await drawn(api, openapi, sweep=SWEEP))["best"] == first.id
    second = trial(make_job, 2, lr=0.01, width=8, kind="sgd")
    end(second, 0.6)
    assert (await drawn(api, openapi, sweep=first.id))["best"] == second.id, "by the id of one of its jobs, too"
    housekeeping.delete(store, second.id)
    assert (await drawn(api, openapi, sweep=SWEEP))["best"] == first.id
    rows = (await api("GET", "/runs"))[1]["rows"]
    assert [row["sweep"] for row in rows] == [SWEEP]
    status, answer = await api("GET", "/trials", params={"sweep": "nothing"})
    assert status == 404 and "no sweep 'nothing'" in answer["message"]


async def test_ticked_jobs_have_an_axis_for_each_parameter_in_which_they_differ(
    api: Api, make_job: MakeJob, openapi: dict[str, Any]
) -> None:
    jobs = [make_job("a", nodes=1, seed=1), make_job("b", nodes=64, seed=1), make_job("c", nodes=8, seed=1, queue="q")]
    for at, job in enumerate(jobs):
        end(job, at / 10)
    ids = [job.id for job in jobs]
    found = await drawn(api, openapi, job=ids, metric="accuracy")
    assert [one["name"] for one in found["axes"]] == ["nodes", "queue"]
    nodes, queue = found["axes"]
    assert nodes["logarithmic"] and nodes["at"] == [1.0, 8.0, 64.0], "it has decades"
    assert queue == {"kind": "words", "name": "queue", "values": ["q"]}
    assert (found["sweep"], found["best"], found["metrics"]) == (False, ids[0], ["loss", "accuracy"])
    assert (await drawn(api, openapi, job=ids, metric="accuracy", maximize="1"))["best"] == ids[2]
    assert (await drawn(api, openapi, job=ids))["best"] == "", "none has a loss"
    for wrong in ({}, {"job": "../etc"}):
        status, answer = await api("GET", "/trials", params=wrong)
        assert status == 404 and answer["message"] == "none of these jobs is there"


async def test_who_may_not_see_jobs_sees_no_sweep(api: Api, jp_serverapp: Any) -> None:
    assert run_handlers.TrialsHandler.auth_resource == "jupyter_hyperpod.jobs"
    asked = []

    class Nobody(type(jp_serverapp.authorizer)):  # type: ignore[misc]
        def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
            asked.append((action, resource))
            return False

    jp_serverapp.web_app.settings["authorizer"] = Nobody(parent=jp_serverapp)
    status, _ = await api("GET", "/trials", params={"sweep": SWEEP})
    assert status == 403 and asked == [("read", "jupyter_hyperpod.jobs")]


@pytest.mark.parametrize("wrong", [{"maximize": "2"}, {"job": ["x"] * 201}])
async def test_a_wrong_request_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    params = [(name, one) for name, value in wrong.items() for one in (value if isinstance(value, list) else [value])]
    status, _ = await api("GET", "/trials", params=params)
    assert status == 400
