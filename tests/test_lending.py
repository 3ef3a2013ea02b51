"""Nodes that a job lends are given back in every phase of its life, so the one that is more urgent begins at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import Conflict
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.storage.store import Store
from tests.cells import train

Wait = Callable[..., Any]
BOUND_S = 60.0

# waits for a file of its job's directory wherever it is told to
PHASES = """
import os, time, torch, jupyter_hyperpod as hp
place = os.environ["HYPERPOD_JOB_DIR"]
def wait_for(name):
    print("waits for", name, flush=True)
    while not os.path.exists(f"{place}/{name}"):
        time.sleep(0.01)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
def loss_fn(batch):
    wait_for("step")
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
wait_for("open")
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=1) as session:
    for step in session.steps(3):
        step.run(loss_fn)
if session.rank == 0:
    wait_for("end")
"""
SCRIPT = """
import time, jupyter_hyperpod as hp
print("runs", flush=True)
while not hp.elastic_event_detected():
    time.sleep(0.01)
"""


@pytest.fixture
def begin(shared_cluster: Store, eventually: Wait) -> Iterator[Callable[..., str]]:
    """Submit a job that is stopped after the test."""
    begun: list[str] = []

    def submit(source: str, **fields: Any) -> str:
        begun.append(jobs.submit(shared_cluster, source, elastic="2:5", **fields))
        return begun[-1]

    yield submit
    for job_id in begun:
        with suppress(Conflict):  # it has ended
            jobs.stop(shared_cluster, job_id)
        jobs.wait(shared_cluster, job_id, timeout_s=BOUND_S)


def test_an_urgent_job_does_not_wait_for_one_that_has_just_begun(
    shared_cluster: Store, begin: Callable[..., str], eventually: Wait
) -> None:
    low = begin(train(), nodes=4, name="low")
    high = begin(train(), nodes=3, priority=10, name="high")
    eventually(lambda: jobs.job_view(shared_cluster, high)["step"] > 0, BOUND_S, "the urgent job does not begin")
    eventually(lambda: jobs.job_view(shared_cluster, low)["step"] > 0, BOUND_S, "the other one stands still")
    jobs.stop(shared_cluster, high)
    eventually(lambda: jobs.job_view(shared_cluster, low)["world_size"] == 4, BOUND_S, "the nodes do not come back")


def test_what_is_lent_before_a_session_opens_is_given_back_when_it_does(
    shared_cluster: Store, begin: Callable[..., str], eventually: Wait
) -> None:
    low = begin(PHASES, nodes=4, name="low")
    eventually(lambda: text(shared_cluster, low).count("waits for open") >= 4, BOUND_S)
    high = begin(train(), nodes=3, priority=10, name="high")
    eventually(lambda: "outside hp.Session" in reasons(shared_cluster, low), BOUND_S)
    assert view(shared_cluster, high)["state"] == "pending"
    (shared_cluster.jobs / low / "open").touch()
    eventually(lambda: jobs.job_view(shared_cluster, high)["step"] > 0, BOUND_S, "the urgent job waits for a step")
    assert view(shared_cluster, low)["step"] == 0


def test_ranks_that_have_ended_give_back_what_is_lent(
    shared_cluster: Store, begin: Callable[..., str], eventually: Wait
) -> None:
    low = begin(PHASES, nodes=4, name="low")
    place = shared_cluster.jobs / low
    eventually(place.exists)
    for name in ("open", "step"):
        (place / name).touch()
    eventually(lambda: "waits for end" in text(shared_cluster, low), BOUND_S)
    high = begin(train(), nodes=3, priority=10, name="high")
    eventually(lambda: jobs.job_view(shared_cluster, high)["step"] > 0, BOUND_S, "the urgent job waits for rank 0")
    assert view(shared_cluster, low)["state"] == "running"
    (place / "end").touch()
    assert jobs.wait(shared_cluster, low, timeout_s=BOUND_S)["state"] == "succeeded"


def test_a_script_gives_back_what_is_lent(shared_cluster: Store, begin: Callable[..., str], eventually: Wait) -> None:
    low = begin(SCRIPT, nodes=4, name="low")
    eventually(lambda: text(shared_cluster, low).count("runs") >= 4, BOUND_S)
    high = begin(train(), nodes=3, priority=10, name="high")
    eventually(lambda: jobs.job_view(shared_cluster, high)["step"] > 0, BOUND_S, "the urgent job does not begin")
    eventually(lambda: view(shared_cluster, low)["world_size"] == 2, BOUND_S, "the script does not go on")


def view(store: Store, job_id: str) -> View:
    return jobs.job_view(store, job_id)


def text(store: Store, job_id: str) -> str:
    return "".join(line["text"] for line in view(store, job_id)["output"])


def reasons(store: Store, job_id: str) -> str:
    return str(view(store, job_id)["decisions"])
