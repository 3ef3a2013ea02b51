"""Jobs on the testbed's Kubernetes, submitted on its controller as a person of a team.

job         job("--nodes", "2", …) submits the training of tests/runtime and returns what follows and disturbs it
reference   the same training, undisturbed on one node of a local cluster
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import TRAIN, Run, reference
from tests.support.kubernetes import CONTROLLER, IMAGE, USER, Testbed

__all__ = ["reference"]

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
        cell = tmp_path / f"cell-{len(submitted)}.py"
        cell.write_text(source)
        fixed = [*desk.options, "--env", f"PAUSE_S={pause_s}", "--json"]
        submitted.append(json.loads(desk("submit", str(cell), *fixed, *arguments).stdout)["id"])
        return Run(desk.store, submitted[-1])

    yield submit
    for job_id in submitted:
        if jobs.job_view(desk.store, job_id)["state"] not in TERMINAL_STATES:
            jobs.stop(desk.store, job_id)
            jobs.wait(desk.store, job_id)
