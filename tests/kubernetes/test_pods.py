"""What a job may ask of its pods: another user than root, claims, places; trained with, and judged by the server."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from jupyter_hyperpod.backends.kubernetes import manifests
from jupyter_hyperpod.backends.kubernetes.client import Api
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.types import BASE
from tests.backends.kubernetes.test_manifests import OPTIONS, PLACED, PLAN
from tests.kubernetes.conftest import TREE, Submit
from tests.kubernetes.test_head import ACCOUNT, START_S, Laptop, laptop
from tests.kubernetes.test_jobs import is_member, jobs_of, pods_of
from tests.runtime.conftest import Run
from tests.slurm.conftest import Gated
from tests.support.kubernetes import IMAGE, TEAM, USER, Testbed
from tests.support.pod_security import refusals

__all__ = ["laptop"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
PERSON, GROUP = 1000, 2000
WHO = """
import os
print("who", os.getuid(), os.getgid(), sorted(os.getgroups()), open("/data/text").read(), flush=True)
try:
    open("/data/made", "w")
except OSError as error:
    print("made", error.errno, flush=True)
"""


def claimed(name: str, directory: Path, mode: str) -> str:
    """A volume that is a directory of the nodes, and a claim of the team that is bound to it."""
    size = "{storage: 1Gi}"
    return f"""apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {size}
  accessModes: [{mode}]
  storageClassName: ""
  hostPath: {{path: "{directory}"}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: {TEAM}}}
spec:
  accessModes: [{mode}]
  storageClassName: ""
  volumeName: {name}
  resources: {{requests: {size}}}
---
"""


@pytest.fixture
def restricted(laptop: Laptop, kubernetes: Testbed) -> Iterator[Laptop]:
    """The laptop's jobs run as a person who is not root, in directories of claims alone."""
    volume, laptop.pods = laptop.pods, laptop.pods / "me"
    laptop.pods.mkdir()
    os.chown(laptop.pods, PERSON, PERSON)
    (volume / "data").mkdir()
    (volume / "data" / "text").write_text("words")
    volume.chmod(0o755)
    made = claimed("team", volume, "ReadWriteMany")
    made += claimed("tree", TREE, "ReadOnlyMany") + claimed("python", Path(sys.prefix), "ReadOnlyMany")
    kubernetes.kubectl("apply", "-f", "-", text=made)
    kubernetes.until(lambda: phases(kubernetes) == {"Bound"}, "the claims have their volumes")
    claims = f"team/me:{laptop.pods},team/data:/data:ro,tree:{TREE}:ro,python:{sys.prefix}:ro"
    laptop.options = ["--backend", "kubernetes", "--spares", "0"]
    for option in (
        f"image={IMAGE}",
        f"claim={claims}",
        "head=pod",
        f"account={ACCOUNT}",
        f"user={PERSON}",
        f"fs-group={GROUP}",
        "affinity=kubernetes.io/os=linux|plan9,!nobody",
        "prefer=kubernetes.io/hostname=n2",
        "tolerations=node-role/any",
    ):
        laptop.options += ["--kubernetes", option]
    yield laptop
    kubernetes.kubectl("delete", "--wait=false", "-f", "-", text=made)


def phases(bed: Testbed) -> set[str]:
    """Of the team's claims."""
    return {one["status"]["phase"] for one in bed.get("persistentvolumeclaims", "-n", TEAM)["items"]}


def pods(bed: Testbed) -> list[dict[str, Any]]:
    return [one["spec"] for one in bed.get("pods", "-n", TEAM)["items"]]


def test_a_job_trains_in_pods_that_a_restricted_namespace_admits(
    restricted: Laptop, kubernetes: Testbed, reference: Run, tmp_path: Path
) -> None:
    gate = Gated(restricted.pods)
    gate.let(1)
    options = ["--nodes", "2", "--elastic", "1:2", "--env", f"GATE={gate.path}", "--env", "PAUSE_S=0.05"]
    run = restricted.train(tmp_path, WHO + gate.source, *options)
    gate.until_whole(run, 2, START_S)
    found = pods(kubernetes)
    assert len(found) == 3, "the head and two nodes"
    assert [refusals(pod) for pod in found] == [[], [], []]
    victim = run.view["members"][1]
    (pod,) = pods_of(kubernetes, run, victim["node"])
    kubernetes.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
    gate.steps_until(run, lambda: not is_member(run, victim["member"]), START_S)
    gate.until_whole(run, 2, START_S)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    said = "".join(run.text().values())
    assert f"who {PERSON} {PERSON} [{PERSON}, {GROUP}] words" in said or f"[{GROUP}] words" in said, said
    assert f"made {errno.EROFS}" in said, "what is mounted for reading stays so"
    assert {one.stat().st_uid for one in restricted.of_head(run).rglob("*")} == {PERSON}
    kubernetes.until(lambda: restricted.head_pods(run) == [] and jobs_of(kubernetes, run) == [], "nothing is left")
    restricted.same_journal(run)


def test_a_volume_that_cannot_be_mounted_is_why_a_job_waits_and_it_runs_when_that_is_over(
    job: Submit, kubernetes: Testbed, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    of_nodes = f'hostPath: {{path: "{absent}"'
    made = claimed("absent", absent, "ReadWriteMany").replace(of_nodes, f"{of_nodes}, type: Directory")
    kubernetes.kubectl("apply", "-f", "-", text=made)
    try:
        options = ["--nodes", "1", "--spares", "0", "--kubernetes", "claim=absent:/absent"]
        run = job(*options, source="print('runs', flush=True)")
        run.until(lambda: "FailedMount: MountVolume.SetUp failed" in run.view["reason"], START_S)
        assert run.view["state"] == "pending" and "is not a directory" in run.view["reason"]
        absent.mkdir()
        run.finish(timeout_s=2 * START_S)
        assert "runs" in "".join(run.text().values())
    finally:
        kubernetes.kubectl("delete", "--wait=false", "-f", "-", text=made)


def test_the_api_server_takes_every_manifest_and_drops_nothing_of_it(kubernetes: Testbed) -> None:
    access = replace(read_access(kubeconfig=kubernetes.kubeconfig(USER)), namespace=TEAM)

    def told(api: Api, made: dict[str, Any]) -> None:
        path = f"/apis/batch/v1/namespaces/{TEAM}/jobs/{made['metadata']['name']}"
        taken = api.apply(path, made, "tests", dry_run=True)
        assert lost(made, taken) == []

    @settings(max_examples=40)
    @given(OPTIONS)
    def every(options: dict[str, str]) -> None:
        told(api, manifests.job(PLAN, options, BASE, 7, 0, manifests.PodUser(1, 2, (3,)), ["n1"]))
        told(api, manifests.head_job(PLAN.job_id, options, ["python"], "heads"))

    with kubernetes.network(), Api(access) as api:
        told(api, manifests.head_job(PLAN.job_id, PLACED, ["python"], "heads"))
        told(api, manifests.job(PLAN, PLACED, BASE, 7, 0, manifests.PodUser(1000, 2000)))
        every()


def lost(asked: Any, taken: Any, at: str = "") -> list[str]:
    """What was asked for and is not in what was taken, which may have more fields; an empty text may be left out."""
    if isinstance(asked, dict):
        pairs = ((f"{at}.{key}", value, taken.get(key, "")) for key, value in asked.items())
        return [one for where, value, found in pairs for one in lost(value, found, where)]
    if isinstance(asked, list) and isinstance(taken, list) and len(asked) == len(taken):
        pairs = ((f"{at}[{index}]", *both) for index, both in enumerate(zip(asked, taken, strict=True)))
        return [one for where, value, found in pairs for one in lost(value, found, where)]
    return [] if asked == taken else [f"{at}: {asked!r}, not {taken!r}"]
