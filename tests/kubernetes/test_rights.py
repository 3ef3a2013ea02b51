"""Least rights on a real API server: what the Role allows suffices, and each right that is missing is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.kubernetes import rights
from jupyter_hyperpod.backends.kubernetes.client import Api, ApiError
from jupyter_hyperpod.backends.kubernetes.inquiry import inquire
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.rights import RIGHTS, Right
from jupyter_hyperpod.backends.kubernetes.shortages import JobNeeds, Shortage, shortages
from jupyter_hyperpod.cli import main
from tests.kubernetes.conftest import Desk
from tests.support.kubernetes import ADMIN, TEAM, USER, Testbed
from tests.support.kubernetes.cluster import API

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
ACCOUNT = "runner"
ABSENT = ("kueue.x-k8s.io", "sagemaker.amazonaws.com")  # from this cluster
HERE = [right for right in RIGHTS if right.group not in ABSENT]
WANTED = JobNeeds(TEAM, 2, {"cpu": "500m", "memory": "64Mi"}, "system-node-critical", claims=("shared",))


@pytest.fixture
def network(kubernetes: Testbed) -> Iterator[Testbed]:
    with kubernetes.network():
        yield kubernetes


@pytest.fixture
def account(network: Testbed) -> Iterator[Api]:
    """A service account that may do nothing yet."""
    network.kubectl("create", "serviceaccount", ACCOUNT, "-n", TEAM)

    def tokens() -> list[dict[str, str]]:
        return network.get("serviceaccount", ACCOUNT, "-n", TEAM).get("secrets", [])

    network.until(lambda: bool(tokens()), "the account has a token")
    asked = network.kubectl(
        "get", "secret", tokens()[0]["name"], "-n", TEAM, "-o", "go-template={{.data.token | base64decode}}"
    )
    access = read_access(kubeconfig=network.kubeconfig(ADMIN))
    with Api(replace(access, token=asked.stdout, namespace=TEAM, files=())) as api:
        yield api
    network.kubectl("delete", "serviceaccount", ACCOUNT, "-n", TEAM)
    for kind in ("role", "rolebinding", "clusterrole", "clusterrolebinding"):
        names = [
            name
            for name in network.kubectl("get", kind, "-n", TEAM, "-o", "name").stdout.split()
            if "/jupyter-" in name
        ]
        if names:
            network.kubectl("delete", *names, *(["-n", TEAM] if not kind.startswith("cluster") else []))


def give(bed: Testbed, allowed: Sequence[Right]) -> None:
    """Let the account have these rights and no others."""
    made = rights.manifests(TEAM, rights.subject(TEAM, ACCOUNT), remedies=True)
    for one in made:
        if "rules" in one:
            cluster = one["kind"] == "ClusterRole"
            changes = one["metadata"]["name"] == rights.REMEDIES
            wanted = [r for r in allowed if r.cluster == cluster and (not cluster or (r.verb == "patch") == changes)]
            one["rules"] = rights.rules(wanted)
    bed.kubectl("apply", "-f", "-", text=rights.as_yaml(made))


def lacking(api: Api, wanted: JobNeeds = WANTED) -> list[Shortage]:
    return shortages(wanted, inquire(api, wanted))


def names(found: Sequence[Shortage]) -> list[str]:
    return [shortage.name for shortage in found]


def test_who_may_nothing_is_told_every_right_and_the_role_gives_them(network: Testbed, account: Api) -> None:
    assert names(lacking(account)) == [right.what for right in HERE]
    network.kubectl("apply", "-f", "-", text=printed_role(network))
    expected = ["patch nodes", "claim shared"]
    network.until(lambda: names(lacking(account)) == expected, "the role is in force")
    (_, claim) = lacking(account)
    assert claim.sentence == f"there is no volume claim shared in the namespace {TEAM}"


def printed_role(bed: Testbed) -> str:
    return rights.as_yaml(rights.manifests(TEAM, rights.subject(TEAM, ACCOUNT)))


def test_each_right_that_is_taken_away_is_named_and_no_other(network: Testbed, account: Api) -> None:
    for missing in HERE:
        give(network, [right for right in RIGHTS if right is not missing])
        others = [] if missing.resource == "persistentvolumeclaims" else ["claim shared"]
        wanted = [missing.what, *others]
        network.until(lambda wanted=wanted: names(lacking(account)) == wanted, f"{missing.what} alone is missed")  # type: ignore[misc]
        first = lacking(account)[0]
        assert missing.what in first.sentence and first.fatal == missing.needed
        assert refused(account, missing) == 403, f"{missing.what} is what the API refuses"


def refused(api: Api, right: Right) -> int:
    """The status with which the API answers to who lacks a right."""
    base = f"/apis/{right.group}/v1" if right.group else "/api/v1"
    base += "" if right.cluster else f"/namespaces/{TEAM}"
    resource, _, part = right.resource.partition("/")
    path = f"{base}/{resource}" + (f"/nobody/{part}" if part else "")
    try:
        if right.verb == "list":
            api.list(path)
        elif right.verb == "watch":
            next(api.watch(path, since="1"))
        elif right.verb == "create":
            api.create(path, {"metadata": {"name": "nobody"}})
        elif right.verb == "get":
            api.get(path if part else f"{path}/nobody")
        elif right.verb == "patch":
            api.patch(f"{path}/nobody", {})
        else:
            api.delete(f"{path}/nobody")
    except ApiError as error:
        return error.status
    return 200


def test_real_quotas_limits_and_classes_are_judged(network: Testbed, account: Api) -> None:
    give(network, RIGHTS)
    network.until(lambda: names(lacking(account)) == ["claim shared"], "all is allowed")
    try:
        network.kubectl("create", "quota", "small", "-n", TEAM, "--hard=requests.cpu=600m,pods=10,limits.memory=1Gi")
        network.kubectl("apply", "-n", TEAM, "-f", "-", text=json.dumps(LIMITS))
        network.until(lambda: len(lacking(account)) == 3, "the quota is counted")
        quota, limit, _ = lacking(account)
        assert quota.fatal and quota.sentence == "2 nodes need 1 of requests.cpu, and the quota small is 600m"
        assert limit.fatal and "at least 100Mi" in limit.sentence
        unnamed = JobNeeds(TEAM, 1, {"cpu": "100m"}, "no-such-class")
        told = [str(shortage) for shortage in lacking(account, unnamed)]
        assert len(told) == 2 and "counts limits.memory, and the job asks for no memory" in told[0]
        assert "there is no priority class no-such-class" in told[1]
        refusal = network.kubectl("apply", "-n", TEAM, "-f", "-", text=json.dumps(POD), check=False)
        assert "must specify limits.memory" in refusal.stderr, "Kubernetes itself refuses what we have named"
    finally:
        network.kubectl("delete", "quota", "small", "-n", TEAM)
        network.kubectl("delete", "limitrange", "limits", "-n", TEAM)


LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "limits"},
    "spec": {"limits": [{"type": "Container", "min": {"memory": "100Mi"}}]},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "unnamed"},
    "spec": {
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}}}]
    },
}


def test_setup_check_shows_what_is_there_and_what_is_missing(
    network: Testbed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(network.kubeconfig(USER)))
    assert main(["setup", "check"]) == 0
    said = capsys.readouterr().out
    assert f"Kubernetes v1.20.2 at https://10.98.0.1, namespace {TEAM}" in said
    assert f"jobs can run in {TEAM}" in said and "rights: all" in said
    assert "you may not list nodes in the cluster" in said and "Kueue: missing" in said
    assert main(["setup", "check", "--namespace", "default", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    failed = {row["name"] for row in told["rows"] if row["verdict"] == "fail"}
    assert not told["fit"] and failed == {right.what for right in RIGHTS if right.needed}
    monkeypatch.setenv("KUBECONFIG", str(network.kubeconfig(ADMIN)))
    assert main(["setup", "check", "--namespace", "no-such-place"]) == 1
    assert "there is no namespace no-such-place" in capsys.readouterr().out


def test_the_printed_role_is_accepted(network: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    for whom in (["--account", ACCOUNT], ["--user", "jane@example.org"], ["--group", "scientists", "--remedies"]):
        assert main(["setup", "role", "--namespace", TEAM, *whom]) == 0
        printed = capsys.readouterr().out
        done = network.kubectl("apply", "--dry-run=server", "-f", "-", text=printed)
        assert done.stdout.count("created (server dry run)") == (6 if "--remedies" in whom else 4)


def test_a_job_that_could_never_run_is_refused_before_anything_is_created(desk: Desk, tmp_path: Path) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text("print('never')")

    def said(*options: str) -> str:
        done = desk("submit", str(cell), *desk.options, *options, check=False)
        assert done.returncode, done.stdout
        return done.stderr

    refused = said("--kubernetes", "namespace=default")
    assert all(f"you may not {right.what} in the namespace default" in refused for right in RIGHTS if right.needed)
    assert "setup role" in refused and "Traceback" not in refused
    assert "there is no volume claim no-such" in said("--kubernetes", "claim=no-such:/data")
    assert "Kueue, which would admit it, is not installed" in said("--kubernetes", "queue=no-such")
    bed = desk.bed
    bed.kubectl("create", "quota", "small", "-n", TEAM, "--hard=pods=2")
    try:
        bed.until(lambda: bool(bed.get("quota", "small", "-n", TEAM)["status"].get("hard")), "the quota is counted")
        assert "3 nodes need 3 of pods, and the quota small is 2" in said("--nodes", "3")
    finally:
        bed.kubectl("delete", "quota", "small", "-n", TEAM)
    with bed.without(API):
        assert "cannot be reached" in said()
    bed.until(bed._answers, "the API answers again")
    assert bed.get("jobs", "-n", TEAM)["items"] == [] and json.loads(desk("list", "--json").stdout) == []
