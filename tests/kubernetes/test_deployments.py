"""A deployment on Kubernetes: replicas in pods, one deleted, one on a node without power, none, one again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_hyperpod.control import jobs
from tests.kubernetes.conftest import Desk
from tests.kubernetes.test_jobs import jobs_of, pods_of
from tests.runtime.conftest import Run
from tests.serving.conftest import HANDLER, Deployment
from tests.support.deployment_clients import Client, Drive
from tests.support.kubernetes import TEAM, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
START_S = 120.0


@pytest.fixture
def network(kubernetes: Testbed) -> Iterator[None]:
    """This thread is where people of the controller are: there is the clients' side of the gateway."""
    with kubernetes.network():
        yield


def served(desk: Desk, *options: str) -> Deployment:
    model, handler = desk.store.root / "model.txt", desk.store.root / "handler.py"
    model.write_text("2.5")
    handler.write_text(HANDLER)
    told = desk("serve", str(model), "--handler", str(handler), *desk.options, "--json", *options).stdout
    return Deployment(desk.store, job_id := json.loads(told)["id"], Client.of(desk.store, job_id))


def running(bed: Testbed, run: Run) -> list[str]:
    """The names of a job's pods that have not ended."""
    found = bed.get("pods", "-n", TEAM, "-l", f"jupyter-hyperpod/job={run.job_id}")
    return [one["metadata"]["name"] for one in found["items"] if one["status"]["phase"] in ("Pending", "Running")]


def test_whatever_happens_to_pods_no_request_is_lost(kubernetes: Testbed, network: None, desk: Desk) -> None:
    found = served(desk, "--replicas", "0:2", "--scale-down-delay", "3s", "--timeout", "2min")
    run = Run(desk.store, found.job_id)
    drive = Drive(found.client, "/predict", lambda at: {"inputs": {"x": at, "s": 0.5}}, rate=8)

    def places() -> list[str]:
        return [member["node"] for member in found.view["members"]]

    with ThreadPoolExecutor(1) as threads:
        driving = threads.submit(drive.run, 400.0)
        try:
            kubernetes.until(lambda: len(places()) == 2, "the load has brought a second replica", START_S)
            first, second = found.view["members"]
            assert first["node"] != second["node"]
            (pod,) = pods_of(kubernetes, run, first["node"])
            kubernetes.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
            gone = first["member"]
            kubernetes.until(
                lambda: len(places()) == 2 and gone not in [one["member"] for one in found.view["members"]],
                "another replica is in the place of the deleted one",
                START_S,
            )
            assert found.view["incidents"] == [], "one that is told to leave is not lost"
            kubernetes.power_cut(second["node"])
            kubernetes.until(lambda: second["node"] not in places(), "the loss is seen", START_S)
            kubernetes.power_on(second["node"])
            kubernetes.until(lambda: len(places()) == 2, "two replicas answer again", START_S)
        finally:
            drive.stop()
        replies = driving.result()
    assert [reply.status for reply in replies if reply.status != 200] == [], "a request was lost"
    kubernetes.until(lambda: found.health().get("replicas") == [], "none is kept where none is needed", START_S)
    kubernetes.until(lambda: running(kubernetes, run) == [], "its nodes are given back", START_S)
    assert found.predict(4).json()["outputs"]["y"] == 10.0
    jobs.stop(desk.store, found.job_id)
    assert jobs.wait(desk.store, found.job_id)["state"] == "stopped"
    kubernetes.until(lambda: jobs_of(kubernetes, run) == [], "no Job is left")
