"""A deployment on SLURM: an engine in each replica, under load, with lost, drained, more, fewer and no nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.storage.store import Store
from tests.leaks import marked_processes
from tests.serving.conftest import Deployment
from tests.slurm.conftest import COMMAND
from tests.support import ROOT
from tests.support.deployment_clients import Client, Drive
from tests.support.hosts import in_network
from tests.support.slurm import CONTROLLER, Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
START_S = 60.0
ENGINE = f"{sys.executable} {ROOT}/tests/support/openai_server.py {{model}} --port {{port}} --helper --pause 0.12"
ASKED = "/v1/completions"


@pytest.fixture
def desk(bed: Testbed) -> Iterator[None]:
    """This thread is where people of the controller are: there is the clients' side of the gateway."""
    with in_network(bed.pid(CONTROLLER)):
        yield


def served(bed: Testbed, store: Store, model: Path, *options: str) -> Deployment:
    fixed = ["--backend", "slurm", "--slurm", "partition=train", "--slurm", "elastic-partition=spot", "--json"]
    command = [*COMMAND, "--store", str(store.root), "serve", str(model), *fixed, *options]
    job_id = json.loads(bed.run(CONTROLLER, *command).stdout)["id"]
    return Deployment(store, job_id, Client.of(store, job_id))


def elements(bed: Testbed, job_id: str) -> list[str]:
    """The states of a job's elements that SLURM still has."""
    return bed.run(CONTROLLER, "squeue", "-h", "-r", "-n", job_id, "-o", "%T").stdout.split()


def test_whatever_happens_to_nodes_no_request_is_lost(
    bed: Testbed, desk: None, slurm_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "weights").write_text("seven")
    options = ["--engine", ENGINE, "--replicas", "0:2", "--scale-down-delay", "2s", "--name", "chat"]
    found = served(bed, slurm_store, tmp_path / "weights", *options)
    drive = Drive(found.client, ASKED, lambda at: {"prompt": f"request {at}", "max_tokens": 4}, rate=8)

    def places() -> list[str]:
        return [member["node"] for member in found.view["members"]]

    with ThreadPoolExecutor(1) as threads:
        driving = threads.submit(drive.run, 120.0)
        try:
            bed.until(lambda: len(places()) == 2, "the load has brought a second replica", START_S)
            lost, drained = places()
            assert lost != drained and {one["host"] for one in found.view["members"]} == {lost, drained}
            bed.power_cut(lost)
            bed.drain(drained, "maintenance")
            bed.until(lambda: len({*places()} - {lost, drained}) == 2, "two others answer in their place", START_S)
        finally:
            drive.stop()
        replies = driving.result()
    assert {reply.status for reply in replies} == {200} and len(replies) > 20, "a request was lost"
    causes = [incident["cause"] for incident in found.view["incidents"]]
    assert causes == ["replica lost"], "who leaves a node that is drained is not lost"
    bed.until(lambda: found.health().get("replicas") == [], "none is kept where none is needed", START_S)
    bed.until(lambda: "RUNNING" not in elements(bed, found.job_id), "its nodes are given back", START_S)
    again = found.client.ask(ASKED, {"prompt": "request 0", "max_tokens": 4})
    assert (again.status, again.json()["choices"][0]["text"]) == (200, replies[0].json()["choices"][0]["text"])
    jobs.stop(slurm_store, found.job_id)
    assert jobs.wait(slurm_store, found.job_id)["state"] == "stopped"
    bed.until(lambda: not [e for e in elements(bed, found.job_id) if e != "COMPLETING"], "nothing is in the queue")
    bed.until(lambda: not marked_processes(found.job_id, "HYPERPOD_JOB_ID"), "no process is left")


def test_the_only_replica_answers_until_another_one_does_and_then_leaves_its_node(
    bed: Testbed, desk: None, slurm_store: Store, tmp_path: Path
) -> None:
    """A node that a person drains with SLURM's own command, and then one that is drained with ours."""
    (tmp_path / "weights").write_text("seven")
    found = served(bed, slurm_store, tmp_path / "weights", "--engine", ENGINE, "--replicas", "1", "--name", "only")
    drive = Drive(found.client, ASKED, lambda at: {"prompt": f"request {at}", "max_tokens": 4}, rate=4)

    def places() -> list[str]:
        return [member["node"] for member in found.view["members"]]

    def moved(drained: str) -> None:
        bed.until(lambda: drained not in places() and len(places()) == 1, f"another one answers for {drained}", START_S)
        bed.until(lambda: len(elements(bed, found.job_id)) == 1, f"{drained} is left", START_S)

    with ThreadPoolExecutor(1) as threads:
        driving = threads.submit(drive.run, 120.0)
        try:
            bed.until(lambda: len(places()) == 1, "it answers", START_S)
            (first,) = places()
            bed.drain(first, "maintenance")
            moved(first)
            (second,) = places()
            ours = [*COMMAND, "--store", str(slurm_store.root), "nodes", "drain", second, "--reason", "a fan is loud"]
            bed.run(CONTROLLER, *ours)
            moved(second)
        finally:
            drive.stop()
        replies = driving.result()
    assert {reply.status for reply in replies} == {200} and len(replies) > 10, "a request was lost"
    states = [event.data["state"] for event in found.events("job.state")]
    assert states[-1] == "running" and "recovering" not in states, "there was always one that answered"
    assert len({event.data["element"] for event in found.events("allocation.changed")}) == 3, "each was replaced once"
    assert found.view["incidents"] == []
    jobs.stop(slurm_store, found.job_id)
    assert jobs.wait(slurm_store, found.job_id)["state"] == "stopped"
