"""Jobs whose pods share no directory: the head has a store of its own, and so has the pod of each node."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.storage.store import Store
from tests.kubernetes.conftest import TREE
from tests.kubernetes.test_head import ACCOUNT, START_S, WAITS, Laptop, head_account, written
from tests.kubernetes.test_jobs import is_member, jobs_of, pods_of
from tests.kubernetes.test_pods import claimed
from tests.runtime.conftest import TRAIN, Run
from tests.slurm.conftest import Gated
from tests.support.kubernetes import IMAGE, TEAM, Testbed
from tests.support.kubernetes.cluster import API

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]


class Apart(Laptop):
    """Pods have the programs of this machine, to read, and no directory to write."""

    def __init__(self, bed: Testbed, store: Store) -> None:
        super().__init__(bed, store, Path("/nowhere"))
        self.options = ["--backend", "kubernetes", "--spares", "0"]
        places = ",".join(dict.fromkeys([f"{sys.prefix}:ro", f"{TREE}:ro"]))
        for option in (f"image={IMAGE}", f"host-path={places}", "head=pod", f"account={ACCOUNT}"):
            self.options += ["--kubernetes", option]

    def shows(self, directory: Path) -> None:
        """Let pods see a directory of this machine, without writing there."""
        self.options = [f"{one},{directory}:ro" if one.startswith("host-path=") else one for one in self.options]

    def of_head(self, run: Run) -> Path:
        raise AssertionError("nobody but the head sees its store")


@pytest.fixture
def apart(kubernetes: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    it = Apart(kubernetes, Store(tmp_path_factory.mktemp("laptop") / "store").prepare())
    with head_account(kubernetes, it):
        yield it


def test_a_job_trains_in_pods_that_share_nothing_and_loses_one(
    apart: Apart, kubernetes: Testbed, reference: Run, tmp_path: Path
) -> None:
    (shown := tmp_path / "shown").mkdir()
    apart.shows(shown)
    gate = Gated(shown)
    gate.let(1)
    source = gate.source + "\nprint('the last line', flush=True)\n"
    options = ["--nodes", "2", "--elastic", "1:2", "--env", f"GATE={gate.path}", "--env", "PAUSE_S=0.02"]
    run = apart.train(tmp_path, source, *options)
    gate.until_whole(run, 2, START_S)
    victim = run.view["members"][1]
    (pod,) = pods_of(kubernetes, run, victim["node"])
    kubernetes.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
    gate.steps_until(run, lambda: not is_member(run, victim["member"]), START_S)
    gate.until_whole(run, 2, START_S)
    with kubernetes.without(API):
        gate.let(run.view["step"] + 3)
        run.until(lambda: True, 1.0)
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert all("the last line" in text for text in run.text().values()) and len(run.text()) == 2, run.text()
    kubernetes.until(lambda: apart.head_pods(run) == [] and jobs_of(kubernetes, run) == [], "nothing is left")
    assert written(run.store.job(run.job_id).path / "events")


OWN = """
import helper
print("helper", helper.VALUE, flush=True)
"""
TWICE = """
again = hp.Session(model, torch.optim.SGD(model.parameters(), lr=1e-3), data, global_batch=16, micro_batch=2, seed=3)
with again as session:
    for step in session.steps(30):
        step.run(loss_fn)
total = float(sum(p.double().sum() for p in model.parameters()))
print("total", total, flush=True)
"""


def test_a_lost_head_whose_store_is_a_claim_goes_on_and_all_members_have_the_same_files(
    apart: Apart, kubernetes: Testbed, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    claims = claimed("heads", volume, "ReadWriteOnce")
    kubernetes.kubectl("apply", "-f", "-", text=claims)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text("VALUE = 1\n")
    try:
        options = ["--nodes", "2", "--elastic", "1:2", "--env", "PAUSE_S=0.1"]
        options += ["--include", str(tmp_path / "code"), "--kubernetes", "head-claim=heads"]
        run = apart.train(tmp_path, OWN + TRAIN + TWICE, *options)
        run.until_world(2, START_S)
        (before,) = apart.head_pods(run)
        kubernetes.kubectl("delete", "pod", before, "-n", TEAM, "--wait=false")
        members = {one["member"] for one in run.view["members"]}
        run.until(lambda: apart.head_pods(run) not in ([before], []), START_S)
        run.until(lambda: run.view["session_number"] == 2, START_S)
        assert members == {one["member"] for one in run.view["members"]}, "who was there goes on in the same process"
        (pod,) = pods_of(kubernetes, run, run.view["members"][1]["node"])
        kubernetes.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
        run.until(lambda: len(run.view["members"]) == 1, START_S)
        run.until_world(2, START_S)
        run.finish(timeout_s=START_S)
        said = run.text()
        ends = {line for text in said.values() for line in text.splitlines() if line.startswith("total")}
        assert len(ends) == 1 and "helper 1" in said[0], said
        kubernetes.until(lambda: apart.head_pods(run) == [] and jobs_of(kubernetes, run) == [], "nothing is left")
    finally:
        kubernetes.kubectl("delete", "--wait=false", "-f", "-", text=claims)


def test_a_lost_head_without_a_claim_says_so_and_what_lies_with_one_pod_is_refused(
    apart: Apart, kubernetes: Testbed, tmp_path: Path
) -> None:
    source = TRAIN.replace("settings = dict(", "settings = dict(checkpoint=os.environ['WHERE'], ")
    run = apart.train(tmp_path, source, "--nodes", "1", "--env", "WHERE=/tmp/runs")
    view = run.until_ended(START_S)
    assert view["state"] == "failed" and "is on the disk of one pod" in json.dumps(view), view
    run = apart.train(tmp_path, WAITS, "--nodes", "1")
    run.until(lambda: bool(run.text()), START_S)
    (before,) = apart.head_pods(run)
    kubernetes.kubectl("delete", "pod", before, "-n", TEAM, "--wait=false")
    view = run.until_ended(START_S)
    assert view["state"] == "failed" and "is gone, and so is the job. A volume claim" in view["reason"], run.story()
    kubernetes.until(lambda: jobs_of(kubernetes, run) == [], "no Job is left")
