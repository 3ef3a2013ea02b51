"""Jobs whose pods HyperPod's training operator makes, for which a stand-in runs here: the same job, the same bits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.kubernetes.workloads.workload import OPERATED
from tests.backends.kubernetes.stand_in_operator import DEFINITION
from tests.kubernetes.conftest import Desk, Submit
from tests.kubernetes.test_jobs import is_member
from tests.runtime.conftest import Run
from tests.slurm.conftest import Gated
from tests.support.kubernetes import CONTROLLER, TEAM, USER, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
START_S = 240.0
OPTION = ["--kubernetes", "operator=hyperpod"]
WAITS = "import threading\nprint('waits', flush=True)\nthreading.Event().wait()\n"
RIGHTS = f"""apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: operated, namespace: {TEAM}}}
rules:
  - {{apiGroups: [sagemaker.amazonaws.com], resources: [hyperpodpytorchjobs], verbs: [create, list, watch, delete]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: operated, namespace: {TEAM}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: operated}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {USER}}}]
"""


def objects_of(bed: Testbed, run: Run, kind: str = OPERATED.resource) -> list[str]:
    found = bed.get(kind, "-n", TEAM, "-l", f"jupyter-hyperpod/job={run.job_id}")
    return [item["metadata"]["name"] for item in found["items"]]


@pytest.fixture
def operator(kubernetes: Testbed) -> Iterator[Testbed]:
    """The testbed with the definition of the operator's jobs, and the stand-in at work."""
    for text in (DEFINITION.read_text(), RIGHTS):
        kubernetes.kubectl("apply", "-f", "-", text=text)
    kubernetes.until(
        lambda: kubernetes.kubectl("get", OPERATED.resource, "-n", TEAM, check=False).returncode == 0,
        "the API server knows the operator's jobs",
    )
    command = [sys.executable, "-m", "tests.backends.kubernetes.stand_in_operator", str(kubernetes.kubeconfig())]
    process = kubernetes.hosts.start(CONTROLLER, command, kubernetes.logs / "operator.log")
    yield kubernetes
    kubernetes.hosts.kill(process)
    for text in (RIGHTS, DEFINITION.read_text()):
        kubernetes.kubectl("delete", "-f", "-", text=text, timeout_s=120)


def test_without_the_operator_the_job_is_refused_before_anything_is_made(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "cell.py"
    file.write_text("print('never')\n")
    asked = desk("submit", str(file), *desk.options, *OPTION, check=False)
    assert asked.returncode == 1, asked.stdout
    assert (
        "the job asks for HyperPod's training operator, and the cluster has none (no HyperPodPyTorchJob); leave "
        "--kubernetes operator=hyperpod out: then its nodes are plain Jobs" in asked.stderr
    )


def test_the_operator_makes_the_pods_and_the_trajectory_stays(
    operator: Testbed, job: Submit, reference: Run, desk: Desk
) -> None:
    gate = Gated(desk.store.root)
    gate.let(1)
    options = ["--nodes", "2", "--elastic", "1:2", "--spares", "0", "--env", f"GATE={gate.path}", *OPTION]
    run = job(*options, source=gate.source, pause_s=0.05)
    gate.until_whole(run, 2, START_S)
    assert len(objects_of(operator, run)) == 2 and not objects_of(operator, run, "jobs")
    victim = run.view["members"][1]
    (pod,) = [
        item["metadata"]["name"]
        for item in operator.get("pods", "-n", TEAM, "-l", f"jupyter-hyperpod/job={run.job_id}")["items"]
        if item["spec"].get("nodeName") == victim["node"]
    ]
    operator.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
    gate.steps_until(run, lambda: not is_member(run, victim["member"]), START_S)
    gate.until_whole(run, 2, START_S)
    desk("fault", "kill", "--job", run.job_id, "--rank", "1")
    gate.let(run.view["step"] + 2)
    gate.until_whole(run, 2, START_S)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    operator.until(lambda: objects_of(operator, run) == [], "no object of the operator is left")
    operator.until(lambda: objects_of(operator, run, "pods") == [], "no pod is left")


def test_a_program_that_fails_and_one_that_is_stopped_leave_nothing(
    operator: Testbed, desk: Desk, job: Submit, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise SystemExit('no such data')\n")
    followed = desk("submit", str(file), *desk.options, *OPTION, "--follow", check=False, timeout_s=START_S)
    assert followed.returncode == 1 and "no such data" in followed.stdout + followed.stderr
    (known,) = [one for one in json.loads(desk("list", "--json").stdout) if one["name"] == "broken"]
    broken = Run(desk.store, known["id"])
    operator.until(lambda: objects_of(operator, broken) == [], "no object of the operator is left")
    run = job("--nodes", "2", "--spares", "0", *OPTION, source=WAITS)
    run.until(lambda: len(run.text()) == 2, START_S)
    desk("stop", run.job_id)
    assert run.until_ended(START_S)["state"] == "stopped", run.story()
    operator.until(lambda: objects_of(operator, run) == [], "no object of the operator is left")
