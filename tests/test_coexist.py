"""A supervisor that was begun for jobs elsewhere has no local nodes, and gets them when somebody wants them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from jupyter_hyperpod.control import cluster, jobs
from jupyter_hyperpod.control.clusters.shape import DEFAULT_NODES, DEFAULT_SPARES
from jupyter_hyperpod.core.errors import Conflict
from jupyter_hyperpod.storage.store import Store
from tests.conftest import running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture
def watcher(store: Store) -> Iterator[Store]:
    """A store whose supervisor has no nodes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        started = running_cluster(store, patch, "TEST_WATCHER_MARK", nodes=0, spares=0, ready=False)
        yield from started


def test_the_first_local_job_brings_nodes_which_the_next_supervisor_finds(
    watcher: Store, eventually: Callable[..., object]
) -> None:
    assert cluster.status(watcher)["nodes"] == []
    job = jobs.submit(watcher, "print('here')", {"name": "local", "spares": 0})
    assert jobs.wait(watcher, job)["state"] == "succeeded"
    nodes = {node["node"]: node["pid"] for node in cluster.wait_ready(watcher)["nodes"]}
    assert len(nodes) == DEFAULT_NODES + DEFAULT_SPARES
    before = cluster.request(watcher, {"op": "status"})["pid"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: cluster.status(watcher)["pid"] not in (None, before))
    assert {node["node"]: node["pid"] for node in cluster.wait_ready(watcher)["nodes"]} == nodes, "all are adopted"


def test_a_cluster_of_a_size_may_begin_beside_jobs_elsewhere(watcher: Store) -> None:
    cluster.ensure_started(watcher, nodes=2, spares=0)
    assert len(cluster.wait_ready(watcher)["nodes"]) == 2
    with pytest.raises(Conflict, match="a cluster with 2 nodes runs already"):
        cluster.ensure_started(watcher, nodes=3)


def test_a_cluster_of_any_size_is_given_the_default_one(watcher: Store) -> None:
    cluster.ensure_started(watcher)
    assert len(cluster.wait_ready(watcher)["nodes"]) == DEFAULT_NODES + DEFAULT_SPARES
