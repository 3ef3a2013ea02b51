"""The head of a job in a pod of its own, submitted from a machine that shares no directory with the pods.

The pods share a directory of the nodes. The submitter's store is elsewhere, and the API server is all that is between.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.kubernetes import rights
from jupyter_hyperpod.storage.mirror.source import OF_CLIENT
from jupyter_hyperpod.storage.store import Store
from tests.kubernetes.conftest import TREE, Desk
from tests.kubernetes.test_jobs import is_member, jobs_of, pods_of
from tests.runtime.conftest import TRAIN, Run, pausing
from tests.slurm.conftest import Gated
from tests.support.kubernetes import IMAGE, TEAM, Testbed
from tests.support.kubernetes.cluster import API

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
START_S = 120.0
ASLEEP_S = float(os.environ.get("TEST_ASLEEP_S", "10"))  # 600 for the bar
ACCOUNT = "heads"
WAITS = "import time\nprint('waits', flush=True)\ntime.sleep(10_000)\n"


class Laptop(Desk):
    """The same commands with a store of its own; ``pods`` is what the pods share."""

    def __init__(self, bed: Testbed, store: Store, pods: Path) -> None:
        super().__init__(bed, store)
        self.pods = pods
        places = dict.fromkeys([f"{sys.prefix}:ro", f"{TREE}:ro", str(pods)])
        self.options = ["--backend", "kubernetes", "--spares", "0"]
        for option in (f"image={IMAGE}", f"host-path={','.join(places)}", "head=pod", f"account={ACCOUNT}"):
            self.options += ["--kubernetes", option]

    def train(self, directory: Path, source: str, *arguments: str) -> Run:
        flag = self.pods / "full-speed"
        (directory / "cell.py").write_text(pausing(source, flag) if "PAUSE_S" in source else source)
        told = self("submit", str(directory / "cell.py"), *self.options, *arguments, "--json").stdout
        run = Run(self.store, json.loads(told)["id"])
        run.flag = flag
        return run

    def of_head(self, run: Run) -> Path:
        """The job's directory as its head sees it."""
        return self.pods / "hyperpod-heads" / run.job_id / "jobs" / run.job_id

    def head_pods(self, run: Run) -> list[str]:
        found = self.bed.get("pods", "-n", TEAM, "-l", f"jupyter-hyperpod/head={run.job_id}")
        return [item["metadata"]["name"] for item in found["items"] if "deletionTimestamp" not in item["metadata"]]

    def follower(self, run: Run) -> int:
        """The process that follows a job; 0 where there is none."""
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"jupyter_hyperpod.control.remote.follower" in words and run.job_id.encode() in words:
                return int(place.name)
        return 0

    def same_journal(self, run: Run) -> None:
        """Every file that the head has written is here, byte for byte, and none besides."""
        here, there = run.store.job(run.job_id).path, self.of_head(run)
        assert written(there / "events")
        for folder in ("events", "output"):
            assert written(here / folder) == written(there / folder)


def written(folder: Path) -> dict[str, bytes]:
    """The files of the head's side."""
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl") if not path.name.startswith(OF_CLIENT)}


@contextmanager
def head_account(kubernetes: Testbed, laptop: Laptop) -> Iterator[None]:
    """Heads have an account with its rights, and in the end nothing follows the laptop's jobs."""
    kubernetes.kubectl("create", "serviceaccount", ACCOUNT, "-n", TEAM)
    roles = rights.as_yaml(rights.manifests(TEAM, rights.subject(TEAM, ACCOUNT)))
    kubernetes.kubectl("apply", "-f", "-", text=roles)
    yield
    for job_id in laptop.store.job_ids():
        if (pid := laptop.follower(Run(laptop.store, job_id))) != 0:
            os.kill(pid, signal.SIGTERM)
    kubernetes.kubectl("delete", "-f", "-", text=roles)
    kubernetes.kubectl("delete", "serviceaccount", ACCOUNT, "-n", TEAM)


@pytest.fixture
def laptop(kubernetes: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    pods = tmp_path_factory.mktemp("pods")
    it = Laptop(kubernetes, Store(tmp_path_factory.mktemp("laptop") / "store").prepare(), pods)
    with head_account(kubernetes, it):
        yield it


def test_whatever_is_cut_or_lost_the_journal_and_the_bits_are_the_same(
    laptop: Laptop, kubernetes: Testbed, reference: Run, tmp_path: Path
) -> None:
    gate = Gated(laptop.pods)
    gate.let(1)
    options = ["--nodes", "2", "--elastic", "1:2", "--env", f"GATE={gate.path}", "--env", "PAUSE_S=0.05"]
    run = laptop.train(tmp_path, gate.source, *options)
    gate.until_whole(run, 2, START_S)

    victim = run.view["members"][1]
    (pod,) = pods_of(kubernetes, run, victim["node"])
    kubernetes.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
    gate.steps_until(run, lambda: not is_member(run, victim["member"]), START_S)
    gate.until_whole(run, 2, START_S)

    with kubernetes.without(API):
        gate.let(run.view["step"] + 3)
    run.until_step(run.view["step"] + 2, START_S)

    os.kill(laptop.follower(run), signal.SIGKILL)
    kubernetes.until(lambda: laptop.follower(run) == 0, "the follower is dead")
    before = run.view["step"]
    gate.let(before + 3)
    laptop("scale", run.job_id, "2")
    run.until_step(before + 2, START_S)

    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    kubernetes.until(lambda: laptop.head_pods(run) == [] and jobs_of(kubernetes, run) == [], "nothing is left")
    laptop.same_journal(run)
    kubernetes.until(lambda: laptop.follower(run) == 0, "the follower has ended")


def test_a_head_that_is_lost_is_replaced_and_obeys_what_was_asked_meanwhile(
    laptop: Laptop, kubernetes: Testbed, tmp_path: Path
) -> None:
    source = TRAIN.replace("(24)", "(10_000)")
    run = laptop.train(tmp_path, source, "--nodes", "2", "--elastic", "1:2", "--env", "PAUSE_S=0.05")
    run.until_world(2, START_S)
    (before,) = laptop.head_pods(run)
    members = {one["member"] for one in run.view["members"]}
    kubernetes.kubectl("delete", "pod", before, "-n", TEAM, "--wait=false")
    laptop("scale", run.job_id, "1")
    run.until_world(1, START_S)
    assert laptop.head_pods(run) != [before]
    assert {one["member"] for one in run.view["members"]} < members, "who was there goes on in the same process"

    (lost,) = laptop.head_pods(run)
    node = kubernetes.get("pod", lost, "-n", TEAM)["spec"]["nodeName"]
    kubernetes.power_cut(node)
    kubernetes.until(lambda: lost not in laptop.head_pods(run), "another head is requested")
    run.until_step(run.view["step"] + 3, START_S)
    laptop("stop", run.job_id)
    assert run.until_ended(START_S)["state"] == "stopped", run.story()
    kubernetes.until(lambda: laptop.head_pods(run) == [] and jobs_of(kubernetes, run) == [], "nothing is left")
    laptop.same_journal(run)
    assert "stopped" in laptop("list").stdout and "step" in laptop("events", run.job_id).stdout


def test_a_laptop_that_sleeps_loses_no_event(laptop: Laptop, kubernetes: Testbed, tmp_path: Path) -> None:
    source = TRAIN.replace("(24)", "(1_000_000)")
    run = laptop.train(tmp_path, source, "--nodes", "1", "--env", "PAUSE_S=0.05")
    run.until_world(1, START_S)
    follower, before = laptop.follower(run), run.view["step"]
    os.kill(follower, signal.SIGSTOP)
    asleep_until = time.monotonic() + ASLEEP_S
    kubernetes.until(lambda: time.monotonic() > asleep_until, "the lid is open", timeout_s=ASLEEP_S + START_S)
    missed = sum(map(len, written(laptop.of_head(run) / "events").values()))
    missed -= sum(map(len, written(run.store.job(run.job_id).path / "events").values()))
    os.kill(follower, signal.SIGCONT)
    run.until_step(before + int(ASLEEP_S), START_S)
    laptop("stop", run.job_id)
    assert run.until_ended(START_S)["state"] == "stopped", run.story()
    kubernetes.until(lambda: laptop.follower(run) == 0, "the follower has ended")
    laptop.same_journal(run)
    steps = [event.data["step"] for event in run.of_kind("step.committed")]
    assert steps == list(range(1, len(steps) + 1)) and missed > 1000 * ASLEEP_S / 60, (len(steps), missed)
    print(f"asleep for {ASLEEP_S:g} s: {missed} bytes of the journal were missed, {len(steps)} steps are here")


def test_a_job_whose_head_never_starts_says_why_and_is_stopped(
    laptop: Laptop, kubernetes: Testbed, tmp_path: Path
) -> None:
    laptop.options += ["--kubernetes", "selector=zone=nowhere"]
    run = laptop.train(tmp_path, TRAIN, "--nodes", "1")
    run.until(lambda: "didn't match" in run.view["reason"], START_S)
    laptop("stop", run.job_id)
    assert run.until_ended(START_S)["state"] == "stopped"
    assert laptop.head_pods(run) == []


def test_an_account_without_rights_is_named_with_what_gives_them(laptop: Laptop, tmp_path: Path) -> None:
    laptop.options = ["account=default" if one.startswith("account=") else one for one in laptop.options]
    run = laptop.train(tmp_path, TRAIN, "--nodes", "1")
    run.until(lambda: "`jupyter hyperpod setup role --account default`" in run.view["reason"], START_S)
    assert "--kubernetes account=NAME" in run.view["reason"] and run.view["state"] == "pending"
    laptop("stop", run.job_id)
    assert run.until_ended(START_S)["state"] == "stopped"


def test_a_head_whose_store_is_gone_says_that_the_job_is(laptop: Laptop, kubernetes: Testbed, tmp_path: Path) -> None:
    run = laptop.train(tmp_path, WAITS, "--nodes", "1")
    run.until(lambda: bool(run.text()), START_S)
    (before,) = laptop.head_pods(run)
    (laptop.pods / "hyperpod-heads").rename(laptop.pods / "elsewhere")
    kubernetes.kubectl("delete", "pod", before, "-n", TEAM, "--wait=false", "--ignore-not-found")
    view = run.until_ended(START_S)
    assert view["state"] == "failed" and "is gone, and so is the job" in view["reason"], run.story()
    kubernetes.until(lambda: jobs_of(kubernetes, run) == [], "no Job is left")
