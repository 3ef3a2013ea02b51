"""``hp.widgets``: the objects follow what is written down, and the examples of their page run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import jupyter_hyperpod as hp
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import NotFound
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from tests.cells import train

PAGE = Path(__file__).resolve().parents[1] / "docs" / "widgets.md"
JOB, CLUSTER, LOAD = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

Eventually = Callable[..., Any]


@pytest.fixture(autouse=True)
def store(shared_cluster: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(shared_cluster.root))
    return shared_cluster


def test_the_example_of_a_job_and_of_the_cluster(
    store: Store, capsys: pytest.CaptureFixture[str], eventually: Eventually
) -> None:
    job_id = jobs.submit(store, train(200), name="first", nodes=2, elastic="1:2")
    job = hp.widgets.Job(job_id)
    seen: list[Any] = []
    job.observe(lambda change: seen.append(change.new), "step")
    eventually(lambda: job.step > 0 and job.world_size == 2, timeout_s=60)
    assert not job.ended and (job.name, job.steps, job.problem) == ("first", 200, "")
    with pytest.raises(TimeoutError, match=f"{job_id} is running at step"):
        job.wait(timeout_s=0)
    exec(CLUSTER, {"hp": hp})
    assert re.search(r"running \d+ nodes are up, [1-9]\d* have a job", capsys.readouterr().out)
    jobs.fault(store, job_id, "kill", rank=1)
    names: dict[str, Any] = {}
    exec(JOB, names)
    assert f"{job_id} succeeded at step 200 of 200, loss " in capsys.readouterr().out
    assert names["job"].incidents[0]["rank"] == 1 and names["job"].metrics["loss"] == pytest.approx(job.wait().loss)
    assert seen == sorted(seen) and seen[-1] == 200

    again = hp.widgets.Job("first")  # as a new kernel would
    assert (again.wait(0).state, again.loss, again.incidents) == ("succeeded", job.loss, job.incidents)
    assert repr(again) == repr(job) and repr(job).startswith("first · succeeded · step 200/200")


def test_an_observer_that_fails_stops_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = hp.widgets.Job(jobs.submit(store, "print('here')", name="watched"))
    job.observe(lambda change: 1 / 0, "state")
    assert job.wait(60).state == "succeeded"
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_job_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(NotFound, match="missing"):
        hp.widgets.Job("missing")


def test_the_example_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"weight": torch.arange(1000.0)}, "model.safetensors")
    names: dict[str, Any] = {"hp": hp}
    exec(LOAD, names)
    load = names["load"]
    assert (
        load.done
        and load.bytes_done == load.bytes_total == 4000
        and torch.equal(names["state"]["weight"], torch.arange(1000.0))
    )
    assert capsys.readouterr().out.startswith("4000 bytes in ")
    shown = load._repr_mimebundle_()
    assert shown["text/plain"].startswith("a small model: 4 kB in ") and 'value="4000"' in shown["text/html"]


def test_values_cannot_be_set(store: Store) -> None:
    with hp.widgets.Cluster() as cluster, pytest.raises(Exception, match="read-only"):
        cluster.state = "mine"
