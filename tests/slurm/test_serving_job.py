"""A SLURM job serves the store: no login host is needed, and the job moves as any job does."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.storage import host_lease
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import TRAIN, Run, pausing
from tests.slurm.conftest import COMMAND, Gated, coordinators_of, exact, until_moved
from tests.support.slurm import CONTROLLER, Testbed

SUBMITTER, STANDBY = "login1", "login2"
SERVED_S = 90.0
GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "slurm.md").read_text()


class ServingJob:
    """The script of the guide to SLURM, and a store that all hosts see."""

    def __init__(self, bed: Testbed, directory: Path) -> None:
        self.bed = bed
        self.store = Store(directory / "store").prepare()
        self.cell, self.script = directory / "cell.py", directory / "serve.sh"
        self.flag = directory / "full-speed"
        self.cell.write_text(pausing(TRAIN, self.flag))
        start, log = shlex.join([*COMMAND, "--store", str(self.store.root)]), directory / "serve.log"
        (text,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", GUIDE, re.DOTALL)
        text = text.replace("jupyter hyperpod", start).replace("--time=7-00", f"--partition=train --output={log}")
        self.script.write_text(text)
        self.number = ""

    def begin(self) -> str:
        """Submit it, and return the node that serves the store."""
        self.number = self.bed.run(SUBMITTER, "sbatch", "--parsable", str(self.script)).stdout.strip()
        self.bed.until(lambda: self.serving() in self.bed.nodes, "a node serves the store", SERVED_S)
        return self.serving()

    def on(self, host: str, *arguments: str, check: bool = True) -> str:
        return self.bed.run(host, *COMMAND, "--store", str(self.store.root), *arguments, check=check).stdout

    def submit(self, pause_s: float, *options: str) -> Run:
        fixed = ["--backend", "slurm", "--slurm", "partition=train", "--nodes", "2", "--spares", "0", "--json"]
        told = self.on(SUBMITTER, "submit", str(self.cell), *fixed, "--env", f"PAUSE_S={pause_s}", *options)
        run = Run(self.store, json.loads(told)["id"])
        run.flag = self.flag
        return run

    def serving(self) -> str:
        record = host_lease.read(self.store)
        return record.host if record is not None else ""

    def state(self) -> str:
        return self.bed.run(SUBMITTER, "squeue", "-h", "-j", self.number, "-o", "%T", check=False).stdout.strip()


@pytest.fixture
def serving_job(bed: Testbed, tmp_path: Path) -> Iterator[ServingJob]:
    found = ServingJob(bed, tmp_path)
    yield found
    bed.run(CONTROLLER, "scancel", "--state=RUNNING")
    bed.restore()
    for host in bed.logins:
        found.on(host, "cluster", "stop", check=False)


def test_the_host_from_which_jobs_are_submitted_may_be_lost(serving_job: ServingJob, reference: Run) -> None:
    node = serving_job.begin()
    run = serving_job.submit(pause_s=0.2)
    run.until_step(3, 90)
    assert f"the supervisor is on {node}" in serving_job.on(SUBMITTER, "cluster", "status")
    serving_job.bed.power_cut(SUBMITTER)
    exact(run, reference, coordinators=1, timeout_s=180)
    assert serving_job.serving() == node and not run.view["incidents"]


def test_the_serving_job_is_requeued(serving_job: ServingJob, reference: Run, tmp_path: Path) -> None:
    """Members train without a coordinator, and are amid the steps when the next one comes, however late that is."""
    gate = Gated(tmp_path)
    serving_job.cell.write_text(pausing(gate.source, serving_job.flag))
    serving_job.begin()
    run = serving_job.submit(0.2, "--env", f"GATE={gate.path}")
    gate.let(8)
    run.until_step(3, 90)
    serving_job.bed.run(SUBMITTER, "scancel", "--batch", "--signal=USR1", serving_job.number)
    run.until_step(8, 90)
    run.until(lambda: len(coordinators_of(run)) == 2, 180)
    assert run.view["step"] == 8
    run.full_speed()
    gate.let(24)
    exact(run, reference, coordinators=2, timeout_s=180)
    assert serving_job.serving() in serving_job.bed.nodes and serving_job.state() == "RUNNING"


def test_the_serving_job_is_cancelled_and_a_standby_takes_over(serving_job: ServingJob, reference: Run) -> None:
    serving_job.begin()
    serving_job.on(STANDBY, "cluster", "start", "--standby")
    run = serving_job.submit(pause_s=0.2)
    run.until_step(3, 90)
    serving_job.bed.run(SUBMITTER, "scancel", serving_job.number)
    until_moved(run, timeout_s=180)
    exact(run, reference, coordinators=2, timeout_s=180)
    assert serving_job.serving() == STANDBY


def test_the_serving_job_ends_with_the_cluster(serving_job: ServingJob) -> None:
    node = serving_job.begin()
    serving_job.on(node, "cluster", "stop")
    serving_job.bed.until(lambda: not serving_job.state(), "the job has ended", SERVED_S)
