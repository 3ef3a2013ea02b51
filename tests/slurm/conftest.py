"""A real SLURM for all tests of this directory, and jobs that are submitted on its controller.

bed         four nodes, all idle when a test begins
job         job("--nodes", "3", …) submits the training of tests/runtime and returns what follows and disturbs it
reference   the same training, undisturbed on one node of a local cluster
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import TRAIN, Run, pausing, reference
from tests.support.slurm import CONTROLLER, Testbed

__all__ = ["reference"]

Submit = Callable[..., Run]
COMMAND = (sys.executable, "-m", "jupyter_hyperpod")


GATE = """
def gate(index):
    while index >= int(open(os.environ["GATE"]).read()):
        time.sleep(0.01)
"""


class Gated:
    """The training stands still before a step until it is let go on: faults come one after another, however slow."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        self.let(0)

    @property
    def source(self) -> str:
        """The same training, behind the gate."""
        head, loop = "settings = dict(", "        loss = step.run(loss_fn)"
        return TRAIN.replace(head, GATE + head).replace(loop, f"        gate(step.index)\n{loop}")

    def let(self, steps: int) -> None:
        """Let it take so many steps in all."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(str(steps))
        fresh.replace(self.path)

    def until_whole(self, run: Run, nodes: int, timeout_s: float) -> None:
        """Wait until so many nodes are there, then let the job take steps until all have a place in them."""
        run.until(lambda: run.view["world_size"] == nodes or run.spare_is_ready(), timeout_s)
        while not run.of_kind("step.committed") or run.of_kind("step.committed")[-1].data["world_size"] < nodes:
            self.let(step := run.view["step"] + 1)
            run.until_step(step, timeout_s)

    def steps_until(self, run: Run, condition: Callable[[], bool], timeout_s: float) -> None:
        """Let it take a step every two seconds, eight at most, until a condition holds that needs the end of a step."""
        for _ in range(8):
            run.read()
            self.let(run.view["step"] + 1)
            due_s = time.monotonic() + 2.0
            run.until(lambda due_s=due_s: condition() or time.monotonic() > due_s, timeout_s)  # type: ignore[misc]
            if condition():
                return
        run.until(condition, timeout_s)


def coordinators_of(run: Run) -> set[str]:
    return {event.writer for event in run.events if event.writer.startswith("coordinator.")}


def until_moved(run: Run, timeout_s: float = 120) -> None:
    """Wait until two steps were committed under a second coordinator; nothing else is to happen in this job."""
    run.until(lambda: len(coordinators_of(run)) == 2 or run.ended, timeout_s)
    step = run.view["step"]
    run.until(lambda: run.view["step"] >= step + 2 or run.ended, timeout_s)
    run.full_speed()


def exact(run: Run, reference: Run, coordinators: int, timeout_s: float = 120) -> None:
    """The job has ended with the bits of the reference and all its members, and so many coordinators served it."""
    run.finish(timeout_s=timeout_s)
    run.same_as(reference)
    assert len(coordinators_of(run)) == coordinators, run.story()
    assert not run.of_kind("member.lost"), run.story()


@pytest.fixture
def bed(switched_on: Testbed) -> Iterator[Testbed]:
    yield switched_on
    switched_on.run(CONTROLLER, "scancel", "--state=PENDING")
    switched_on.run(CONTROLLER, "scancel", "--state=RUNNING")
    switched_on.restore()


@pytest.fixture(scope="module")
def slurm_store(switched_on: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store whose supervisor runs on the controller."""
    store = Store(tmp_path_factory.mktemp("slurm") / "store").prepare()
    yield store
    switched_on.run(CONTROLLER, *COMMAND, "--store", str(store.root), "cluster", "stop", check=False)


@pytest.fixture
def job(bed: Testbed, slurm_store: Store, tmp_path: Path) -> Iterator[Submit]:
    submitted: list[str] = []

    def submit(*arguments: str, source: str = TRAIN, pause_s: float = 0.02) -> Run:
        cell, flag = tmp_path / f"cell-{len(submitted)}.py", tmp_path / f"full-speed-{len(submitted)}"
        cell.write_text(pausing(source, flag) if "PAUSE_S" in source else source)
        fixed = ["--backend", "slurm", "--slurm", "partition=train", "--env", f"PAUSE_S={pause_s}", "--json"]
        command = [*COMMAND, "--store", str(slurm_store.root), "submit", str(cell), *fixed, *arguments]
        submitted.append(json.loads(bed.run(CONTROLLER, *command).stdout)["id"])
        run = Run(slurm_store, submitted[-1])
        run.flag = flag
        return run

    yield submit
    for job_id in submitted:
        if jobs.job_view(slurm_store, job_id)["state"] not in TERMINAL_STATES:
            jobs.stop(slurm_store, job_id)
            jobs.wait(slurm_store, job_id)
