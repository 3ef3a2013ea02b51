"""A port that another program has: refused before anything is submitted, told in a sentence where it is too late."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.core.errors import Conflict
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.serving.context import Site
from jupyter_hyperpod.serving.gateway import Gateway
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def deployment(store: Store, port: int) -> JobStore:
    """One that was submitted and that nobody has started."""
    spec = JobSpec("chat", store.put_cell(""), serve=ServeSpec("/model", port=port))
    job = store.create_job(spec)
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": spec.to_json()})
    return job


def test_a_port_in_use_is_refused_before_anything_is_submitted(store: Store, tmp_path: Path, taken: int) -> None:
    with pytest.raises(Conflict, match=rf"^port {taken} is in use; choose another --port"):
        deploy.serve(store, str(tmp_path), port=taken)
    assert store.job_ids() == []
    ours = deployment(store, taken)
    with event_writer(ours.events, "gateway") as journal:
        journal.append("deployment.opened", {"url": f"http://127.0.0.1:{taken}", "model": "m", "task": "completions"})
    with pytest.raises(Conflict, match=f"is in use by the deployment {ours.id}; choose another"):
        deploy.serve(store, str(tmp_path), port=taken)
    assert store.job_ids() == [ours.id]


def test_a_gateway_whose_port_was_taken_meanwhile_ends_the_deployment_with_a_sentence(store: Store, taken: int) -> None:
    job = deployment(store, taken)
    spec = job.spec()
    assert spec.serve is not None
    assert asyncio.run(Gateway(Site(job, "head", job.path, spec, spec.serve)).run()) == 0, "nobody starts it again"
    view = jobs.job_view(store, job.id)
    assert view["state"] == "failed" and view["reason"].startswith(f"port {taken} is in use; choose another --port")
