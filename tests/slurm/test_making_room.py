"""Two jobs of which each has half the nodes that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.conftest import Run
from tests.slurm.conftest import Submit
from tests.support.slurm import CONTROLLER, Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
START_S = 120.0
HELD = (("long", 2), ("short", 1))  # what others run on how many of the four nodes


def nodes_of(bed: Testbed, run: Run) -> list[str]:
    """Where SLURM runs the job now."""
    shown = bed.run(CONTROLLER, "squeue", "-h", "-r", "-t", "running", "-n", run.job_id, "-o", "%N").stdout
    return shown.split()


@pytest.fixture
def busy(bed: Testbed) -> Iterator[None]:
    """Others hold three of the four nodes."""
    others = {name: ["srun", "-J", name, "-p", "urgent", f"-N{n}", "--exclusive", "sleep", "900"] for name, n in HELD}
    held = [bed.start(CONTROLLER, command) for command in others.values()]
    bed.until(lambda: list(bed.states().values()).count("alloc") == 3, "three nodes are taken")
    yield
    for name in others:  # scancel takes one name
        bed.run(CONTROLLER, "scancel", f"--name={name}")
    for process in held:
        process.wait(60)


@pytest.mark.usefixtures("busy")
def test_of_two_jobs_that_wait_for_each_other_the_older_begins(bed: Testbed, job: Submit, reference: Run) -> None:
    older = job("--nodes", "2", "--spares", "0")
    bed.until(lambda: len(nodes_of(bed, older)) == 1, "the older job has one node")
    younger = job("--nodes", "2", "--spares", "0")

    def arrays() -> set[str]:
        return set(bed.run(CONTROLLER, "squeue", "-h", "-n", younger.job_id, "-o", "%F").stdout.split())

    bed.until(lambda: len(arrays()) == 1, "the younger job has asked")
    bed.run(CONTROLLER, "scontrol", "update", f"jobid={arrays().pop()}", "priority=4294967000")
    bed.run(CONTROLLER, "scancel", "--name=short")
    bed.until(lambda: len(nodes_of(bed, younger)) == 1, "the younger job has one node")
    older.until_world(2, START_S)
    leaves = f"leaves 1 node to {older.job_id}, which can begin then; this job has 1 of the 2 nodes that it needs"
    younger.until(lambda: any(event.data["reason"] == leaves for event in younger.of_kind("decision.made")), START_S)
    older.finish(timeout_s=START_S)
    younger.finish(timeout_s=START_S)
    for run in (older, younger):
        run.same_as(reference)
        assert not run.view["incidents"], run.story()
        assert not run.of_kind("warning.raised"), run.story()
