"""The same training on Kubernetes: submitted, followed, disturbed for real, and the same bits as on one local node."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.backends.kubernetes import rights
from jupyter_hyperpod.storage.store import Store
from tests.backends.rigs import SEES_NODES
from tests.kubernetes.conftest import Desk, Submit
from tests.runtime.conftest import TRAIN, Run
from tests.slurm.conftest import Gated
from tests.support.kubernetes import TEAM, USER, Testbed
from tests.support.kubernetes.cluster import API
from tests.support.kubernetes.settings import kubeconfig

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
START_S = 240.0
CLASSES = """apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: team-urgent}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: team-spare}
value: 10
"""
HELLO = "import os\nprint('hello from', os.environ['HYPERPOD_NODE'], flush=True)\n"


def jobs_of(bed: Testbed, run: Run) -> list[str]:
    """The names of the Jobs that Kubernetes has of a job."""
    found = bed.get("jobs", "-n", TEAM, "-l", f"jupyter-hyperpod/job={run.job_id}")
    return [item["metadata"]["name"] for item in found["items"]]


def is_member(run: Run, member: str) -> bool:
    return member in [one["member"] for one in run.view["members"]]


def pods_of(bed: Testbed, run: Run, node: str) -> list[str]:
    """The names of a job's pods on a node."""
    found = bed.get("pods", "-n", TEAM, "-l", f"jupyter-hyperpod/job={run.job_id}")
    return [item["metadata"]["name"] for item in found["items"] if item["spec"].get("nodeName") == node]


def test_a_job_is_submitted_followed_and_shown_and_leaves_nothing(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "hello.py"
    file.write_text(HELLO)
    options = [*desk.options, "--nodes", "2", "--spares", "0", "--follow"]
    followed = desk("submit", str(file), *options, timeout_s=START_S).stdout
    assert "hello from n1" in followed and "hello from n2" in followed, followed
    (known,) = json.loads(desk("list", "--json").stdout)
    assert known["state"] == "succeeded"
    told = desk("describe", known["id"]).stdout
    assert known["id"] in told and "kubernetes" in told
    assert "hello from n1" in desk("logs", known["id"]).stdout
    run = Run(desk.store, known["id"])
    run.until_ended(START_S)
    desk.bed.until(lambda: jobs_of(desk.bed, run) == [], "no Job is left")


def test_whatever_happens_to_pods_and_nodes_the_trajectory_stays(
    kubernetes: Testbed, job: Submit, reference: Run, tmp_path_factory: pytest.TempPathFactory, desk: Desk
) -> None:
    gate = Gated(desk.store.root)
    gate.let(1)  # who comes late begins when a step is committed
    options = ["--nodes", "2", "--elastic", "1:2", "--spares", "0", "--env", f"GATE={gate.path}"]
    run = job(*options, source=gate.source, pause_s=0.05)
    gate.until_whole(run, 2, START_S)

    def until_gone(member: str) -> None:
        """It is gone, and the others have taken a step without it."""
        run.until(lambda: not is_member(run, member), START_S)
        gate.let(step := run.view["step"] + 1)
        run.until_step(step, START_S)

    victim = run.view["members"][1]
    (pod,) = pods_of(kubernetes, run, victim["node"])
    kubernetes.kubectl("delete", "pod", pod, "-n", TEAM, "--wait=false")
    gate.steps_until(run, lambda: not is_member(run, victim["member"]), START_S)  # it leaves at the end of a step
    until_gone(victim["member"])
    gate.until_whole(run, 2, START_S)

    victim = run.view["members"][1]
    run.kill_node(1)  # its agent, of which nothing tells Kubernetes
    until_gone(victim["member"])
    gate.until_whole(run, 2, START_S)

    with kubernetes.without(API):
        gate.let(step := run.view["step"] + 2)
        run.until_step(step, START_S)

    gate.let(run.view["step"] + 1)
    victim = run.view["members"][1]
    kubernetes.power_cut(victim["node"])
    until_gone(victim["member"])
    kubernetes.power_on(victim["node"])
    gate.until_whole(run, 2, START_S)

    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert "node lost" in [incident["cause"] for incident in run.view["incidents"]], run.story()
    kubernetes.until(lambda: jobs_of(kubernetes, run) == [], "no Job is left")


def test_an_urgent_job_takes_a_node_which_is_left_between_steps(
    desk: Desk, kubernetes: Testbed, job: Submit, reference: Run
) -> None:
    """Kubernetes preempts the pod of the lower class; what it gives back afterwards is used again."""
    kubernetes.kubectl("apply", "-f", "-", text=CLASSES)
    gate = Gated(desk.store.root)
    gate.let(1)  # who comes late begins when a step is committed
    options = ["--spares", "0", "--kubernetes", "resources=cpu=1500m", "--kubernetes", "priority-class=team-urgent"]
    elastic = ["--nodes", "2", "--elastic", "1:2", "--kubernetes", "elastic-priority-class=team-spare"]
    run = job(*options, *elastic, "--env", f"GATE={gate.path}", source=gate.source, pause_s=0.05)
    gate.until_whole(run, 2, START_S)
    urgent = job("--nodes", "1", *options, source=HELLO)
    while run.view["world_size"] == 2:
        gate.let(step := run.view["step"] + 1)
        run.until_step(step, START_S)
    urgent.finish(timeout_s=START_S)
    gate.until_whole(run, 2, START_S)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert run.view["incidents"] == [], run.story()


def test_the_cluster_is_validated_row_by_row(desk: Desk, kubernetes: Testbed) -> None:
    told = desk("validate", *desk.options, "--nodes", "2", "--json", check=False, timeout_s=START_S)
    assert told.returncode and "403" in told.stderr and "nodes" in told.stderr, "a person may not list nodes"
    kubernetes.kubectl("apply", "-f", "-", text=SEES_NODES.format(user=USER))
    told = desk("validate", *desk.options, "--nodes", "2", "--json", timeout_s=2 * START_S)
    rows = {row["name"]: row for row in json.loads(told.stdout)["rows"]}
    assert {row["verdict"] for row in rows.values()} <= {"pass", "skipped"}, rows
    assert rows["nodes"]["sentence"] == "2 of 2 nodes are in service" and rows["training"]["verdict"] == "pass"


def test_a_secret_and_hostile_words_stay_where_they_belong(kubernetes: Testbed, job: Submit, desk: Desk) -> None:
    token, mark = "hf_" + secrets.token_hex(20), desk.store.root / "executed"
    nasty = f"$(touch {mark}); `touch {mark}` '\"\\ $$ $(HOME) ${{HOME}} &| <x> *"
    goes = desk.store.root / "goes"
    source = "import os, time\nprint(repr(os.environ['NASTY']), len(os.environ['HF_TOKEN']), flush=True)\n"
    source += f"while not os.path.exists({str(goes)!r}): time.sleep(0.01)\n"
    run = job("--nodes", "1", "--spares", "0", "--env", f"NASTY={nasty}", "--env", f"HF_TOKEN={token}", source=source)
    run.until(lambda: bool(run.text()), START_S)
    shown = kubernetes.kubectl("get", "jobs,pods,configmaps", "-n", TEAM, "-o", "json").stdout
    assert run.job_id in shown and token not in shown and "touch" not in shown
    goes.touch()
    run.finish(timeout_s=START_S)
    assert f"{nasty!r} {len(token)}" in "".join(run.text().values())
    assert not mark.exists()


def test_a_store_that_pods_do_not_share_is_refused_before_anything_is_made(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "hello.py"
    file.write_text(HELLO)
    for options, said in (
        (["--kubernetes", "image=x"], "needs --kubernetes claim=… or --kubernetes host-path=…"),
        (["--kubernetes", "image=x", "--kubernetes", "host-path=/opt"], f"pods would not see {desk.store.root}"),
        (["--kubernetes", "imege=x"], "did you mean image"),
    ):
        done = desk("submit", str(file), "--backend", "kubernetes", *options, check=False)
        assert done.returncode and said in done.stderr, done.stderr


def test_a_job_is_scaled_and_stopped_with_the_roles_that_setup_prints(
    desk: Desk, kubernetes: Testbed, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A supervisor of its own works as an account that has these roles and nothing else."""
    kubernetes.kubectl("create", "serviceaccount", "hyperpod", "-n", TEAM)
    roles = rights.as_yaml(rights.manifests(TEAM, rights.subject(TEAM, "hyperpod")))
    kubernetes.kubectl("apply", "-f", "-", text=roles)
    kubernetes.until(lambda: "secrets" in account(kubernetes), "the account has a token")
    secret = kubernetes.get("secret", account(kubernetes)["secrets"][0]["name"], "-n", TEAM)
    place = tmp_path_factory.mktemp("least")
    access = place / "kubeconfig"
    access.touch(0o600)
    token = base64.b64decode(secret["data"]["token"]).decode()
    access.write_text(kubeconfig(token, kubernetes.directory / "pki" / "ca.crt", TEAM))
    own = Desk(kubernetes, Store(place / "store").prepare())
    own.kubeconfig = access
    file = place / "train.py"
    file.write_text(TRAIN.replace("(24)", "(10_000)"))
    try:
        submitted = own("submit", str(file), *own.options, "--nodes", "2", "--elastic", "1:2", "--json").stdout
        run = Run(own.store, json.loads(submitted)["id"])
        run.until_world(2, START_S)
        own("scale", run.job_id, "1")
        run.until_world(1, START_S)
        own("scale", run.job_id, "2")
        run.until_world(2, START_S)
        stopped = own("fault", "hang", "--job", run.job_id, "--node", run.node_of(1)).stdout
        assert "asked for hang" in stopped, stopped
        run.until_world(1, START_S)
        own("stop", run.job_id)
        assert run.until_ended(START_S)["state"] == "stopped", run.story()
        kubernetes.until(lambda: jobs_of(kubernetes, run) == [], "no Job is left")
    finally:
        own("cluster", "stop", check=False)
        kubernetes.kubectl("delete", "-f", "-", text=roles)
        kubernetes.kubectl("delete", "serviceaccount", "hyperpod", "-n", TEAM)


def account(bed: Testbed) -> dict[str, Any]:
    return bed.get("serviceaccount", "hyperpod", "-n", TEAM)
