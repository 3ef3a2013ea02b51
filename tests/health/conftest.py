"""One cluster for all tests of node health: four nodes, a spare, and their agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.storage.store import Store
from tests.conftest import running_cluster

CALM_S = 300.0  # pressure of the machine itself is averaged over the last minute


@pytest.fixture(scope="session")
def health_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("health") / "store").prepare()
    with pytest.MonkeyPatch.context() as patch:
        yield from running_cluster(store, patch, "TEST_SHARED_CLUSTER_MARK")


@pytest.fixture
def cluster_of_health(health_cluster: Store, eventually: Callable[..., Any]) -> Store:
    """Every node is watched, schedulable and repaired automatically."""
    main(["--store", str(health_cluster.root), "health", "recovery", "Automatic"])
    eventually(lambda: len(cluster.status(health_cluster)["health"]) == 5)

    restless: list[str] = []

    def calm() -> bool:
        view = cluster.status(health_cluster)
        restless[:] = [f"{name}: {health}" for name, health in view["health"].items() if health["action"] != "watch"]
        restless.extend(f"{node['node']}: {node['state']}" for node in view["nodes"] if node["state"] != "idle")
        return not restless

    try:
        eventually(calm, CALM_S)
    except AssertionError:
        pytest.fail(f"nodes are not at rest after {CALM_S:g} s: {restless}")
    return health_cluster
