"""Jobs on the testbed's Kubernetes, submitted on its controller as a person of a team.

job         job("--nodes", "2", …) submits the training of tests/runtime and returns what follows and disturbs it; it
            pauses in its steps until ``full_speed()``
reference   the same training, undisturbed on one node of a local cluster
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.locks import one_at_a_time
from tests.conftest import running_cluster
from tests.runtime.conftest import STEPS, TRAIN, Run, pausing, start
from tests.support.kubernetes import CONTROLLER, IMAGE, USER, Testbed

TREE = Path(__file__).resolve().parents[2]
Submit = Callable[..., Run]


class Desk:
    """Where a person works: the commands of this package on the controller, with a store that the nodes share."""

    def __init__(self, bed: Testbed, store: Store) -> None:
        self.bed, self.store, self.kubeconfig = bed, store, bed.kubeconfig(USER)
        places = dict.fromkeys([f"{sys.prefix}:ro", f"{TREE}:ro", str(store.root)])
        self.options = ["--backend", "kubernetes", "--kubernetes", f"image={IMAGE}"]
        self.options += ["--kubernetes", f"host-path={','.join(places)}"]

    def __call__(self, *arguments: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """`jupyter hyperpod ARGUMENT …`."""
        command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(self.store.root), *arguments]
        access = {"KUBECONFIG": str(self.kubeconfig)}
        return self.bed.hosts.run(CONTROLLER, *command, env=access, check=check, timeout_s=timeout_s)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`TRAIN` on one node, undisturbed: run once for all lanes of `.ci/beside`."""
    lanes = os.environ.get("TEST_LANES")
    place = Path(lanes) if lanes else tmp_path_factory.mktemp("reference")
    store, done = Store(place / "store").prepare(), place / "reference"
    with one_at_a_time(place / "reference.lock", "the reference is being made", wait_s=180):
        if not done.exists():
            done.write_text(undisturbed(store).job_id)
    run = Run(store, done.read_text())
    run.finish()
    assert len(run.losses()) == STEPS
    return run


def undisturbed(store: Store) -> Run:
    """The run; its cluster is stopped again: it would take time from the testbed."""
    cluster = contextmanager(running_cluster)
    with pytest.MonkeyPatch.context() as patch, cluster(store, patch, "TEST_CLUSTER_MARK", nodes=1, spares=0):
        run = start(store, TRAIN, nodes=1, spares=0, env={"PAUSE_S": "0"})
        run.finish()
    return run


@pytest.fixture(scope="module")
def kubernetes_store(shared_testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store whose supervisor runs on the controller."""
    store = Store(tmp_path_factory.mktemp("kubernetes") / "store").prepare()
    yield store
    Desk(shared_testbed, store)("cluster", "stop", check=False)


@pytest.fixture
def desk(kubernetes: Testbed, kubernetes_store: Store) -> Desk:
    return Desk(kubernetes, kubernetes_store)


@pytest.fixture
def job(desk: Desk, tmp_path: Path) -> Iterator[Submit]:
    submitted: list[str] = []

    def submit(*arguments: str, source: str = TRAIN, pause_s: float = 0.02) -> Run:
        cell, flag = tmp_path / f"cell-{len(submitted)}.py", desk.store.root / f"full-speed-{secrets.token_hex(4)}"
        cell.write_text(pausing(source, flag) if "PAUSE_S" in source else source)
        fixed = [*desk.options, "--env", f"PAUSE_S={pause_s}", "--json"]
        submitted.append(json.loads(desk("submit", str(cell), *fixed, *arguments).stdout)["id"])
        run = Run(desk.store, submitted[-1])
        run.flag = flag
        return run

    yield submit
    for job_id in submitted:
        if jobs.job_view(desk.store, job_id)["state"] not in TERMINAL_STATES:
            jobs.stop(desk.store, job_id)
            jobs.wait(desk.store, job_id)
