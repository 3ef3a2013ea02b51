"""Two login hosts share a store: one serves it, the other takes over, and a job goes on to the bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.storage import host_lease
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import TRAIN, Run, pausing
from tests.slurm.conftest import COMMAND, exact, until_moved
from tests.support.slurm import Testbed

FIRST, SECOND = "login1", "login2"
TURN_S = 60.0


class Logins:
    """The two hosts, and a store that both see."""

    def __init__(self, bed: Testbed, directory: Path) -> None:
        self.bed = bed
        self.store = Store(directory / "store").prepare()
        self.cell = directory / "cell.py"
        self.flag = directory / "full-speed"
        self.cell.write_text(pausing(TRAIN, self.flag))

    def on(self, host: str, *arguments: str, check: bool = True) -> str:
        return self.bed.run(host, *COMMAND, "--store", str(self.store.root), *arguments, check=check).stdout

    def submit(self, host: str, pause_s: float = 0.2) -> Run:
        fixed = ["--backend", "slurm", "--slurm", "partition=train", "--nodes", "3", "--spares", "0", "--json"]
        told = self.on(host, "submit", str(self.cell), *fixed, "--env", f"PAUSE_S={pause_s}")
        run = Run(self.store, json.loads(told)["id"])
        run.flag = self.flag
        return run

    def stand_by(self, host: str) -> None:
        """Start a standby, and wait until it could fork a coordinator."""
        self.on(host, "cluster", "start", "--standby")
        log = self.store.cluster / host_lease.OTHER_HOSTS / host / "supervisor.log"
        places = [log, self.store.cluster / "supervisor.log"]
        self.bed.until(lambda: any(p.exists() and "ready to fork" in p.read_text() for p in places), f"{host} is warm")

    def serving(self) -> str:
        record = host_lease.read(self.store)
        return record.host if record is not None else ""

    def until_served_by(self, host: str) -> None:
        self.bed.until(lambda: self.serving() == host, f"{host} serves the store", TURN_S)


@pytest.fixture
def logins(bed: Testbed, tmp_path: Path) -> Iterator[Logins]:
    found = Logins(bed, tmp_path)
    yield found
    bed.restore()
    for host in bed.logins:
        found.on(host, "cluster", "stop", check=False)


def test_the_submit_host_loses_its_power_and_the_standby_takes_over(logins: Logins, reference: Run) -> None:
    run = logins.submit(FIRST)
    logins.stand_by(SECOND)
    run.until_step(3, 60)
    logins.bed.power_cut(FIRST)
    logins.until_served_by(SECOND)
    until_moved(run)
    exact(run, reference, coordinators=2)
    (incident,) = run.view["incidents"]
    assert incident["cause"] == "host of the coordinator lost"
    assert [stage["stage"] for stage in incident["stages"]][-1] == "resumed"
    assert "login2 took over from login1" in logins.on(SECOND, "cluster", "status")


def test_a_host_that_stood_still_and_wakes_up_decides_nothing_any_more(logins: Logins, reference: Run) -> None:
    run = logins.submit(FIRST)
    logins.stand_by(SECOND)
    run.until_step(3, 60)
    logins.bed.freeze(FIRST)
    logins.until_served_by(SECOND)
    run.until_step(run.view["step"] + 2, 60)
    logins.bed.thaw(FIRST)
    told = "processes of this host end"
    log = logins.store.cluster / "supervisor.log"
    logins.bed.until(lambda: told in log.read_text(), "the first host has noticed")
    until_moved(run)
    exact(run, reference, coordinators=2)
    assert logins.serving() == SECOND


def test_a_host_that_is_alive_hands_over_on_request(logins: Logins, reference: Run) -> None:
    run = logins.submit(FIRST)
    logins.stand_by(SECOND)
    assert "login1 serves this store, and this host stands by" in logins.on(SECOND, "cluster", "status")
    run.until_step(3, 60)
    told = logins.on(SECOND, "cluster", "start", "--take-over")
    assert "login2 took over from login1" in told
    assert logins.serving() == SECOND
    until_moved(run)
    exact(run, reference, coordinators=2)
    assert not [w for w in run.view["warnings"] if "stands still" in w["text"]], "no lease ran out"
    assert [incident["cause"] for incident in run.view["incidents"]] == ["coordinator moved"]


def test_a_submit_on_a_second_host_is_steered_by_the_first(logins: Logins, reference: Run) -> None:
    first = logins.submit(FIRST, pause_s=0.0)
    second = logins.submit(SECOND, pause_s=0.05)
    assert logins.serving() == FIRST
    assert not (logins.store.cluster / host_lease.OTHER_HOSTS / SECOND / "supervisor.sock").exists()
    exact(first, reference, coordinators=1)
    logins.on(SECOND, "scale", second.job_id, "2")
    exact(second, reference, coordinators=1)
    assert "the supervisor is on login1" in logins.on(SECOND, "cluster", "status")


def test_a_submit_takes_over_from_a_host_that_was_lost(logins: Logins, reference: Run) -> None:
    run = logins.submit(FIRST)
    run.until_step(3, 60)
    logins.bed.power_cut(FIRST)
    other = logins.submit(SECOND, pause_s=0.0)
    logins.until_served_by(SECOND)
    until_moved(run)
    exact(run, reference, coordinators=2)
    exact(other, reference, coordinators=1)


def test_every_process_of_the_user_on_the_submit_host_is_killed(logins: Logins, reference: Run) -> None:
    """Its network stays: connections are refused, so no lease runs out, and training does not stand still."""
    run = logins.submit(FIRST)
    logins.stand_by(SECOND)
    run.until_step(3, 60)
    logins.bed.run(FIRST, "pkill", "-KILL", "-f", "jupyter_hyperpod", check=False)
    logins.until_served_by(SECOND)
    until_moved(run)
    exact(run, reference, coordinators=2)
    assert not [w for w in run.view["warnings"] if "stands still" in w["text"]], "no lease ran out"


def test_when_the_cluster_is_stopped_the_standby_ends(logins: Logins) -> None:
    run = logins.submit(FIRST)
    logins.stand_by(SECOND)
    run.until_step(1, 60)
    logins.on(FIRST, "cluster", "stop")
    socket = logins.store.cluster / host_lease.OTHER_HOSTS / SECOND / "supervisor.sock"
    logins.bed.until(lambda: not socket.exists(), "the standby has ended")
    assert run.until_ended(30)["state"] in TERMINAL_STATES
    refused = logins.bed.run(SECOND, *COMMAND, "--store", str(logins.store.root), "cluster", "stop", check=False)
    assert refused.returncode == 0, refused.stderr
