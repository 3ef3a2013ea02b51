"""``setup apply`` and ``setup remove`` on a real API server: idempotent, and exactly what is ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from tests.support.kubernetes import ADMIN, USER, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
SCHEMAS = json.loads((Path(__file__).parents[1] / "data" / "schemas" / "kueue.json").read_text())
KINDS = "clusterrolebinding clusterrole rolebinding role priorityclass namespace".split()
ONE, TWO = "setup-one", "setup-two"


@pytest.fixture
def network(kubernetes: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    with kubernetes.network():
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig(ADMIN)))
        yield kubernetes
        for name in (ONE, TWO):
            kubernetes.kubectl("delete", "jobs", "--all", "-n", name, check=False)
            kubernetes.kubectl("delete", "configmap", "mine", "-n", name, check=False)
            gone(kubernetes, name)
        kubernetes.kubectl("delete", "clusterrole", "jupyter-hyperpod", "--ignore-not-found")


def gone(bed: Testbed, namespace: str) -> None:
    assert main(["setup", "remove", "--namespace", namespace, "--json"]) == 0
    bed.until(lambda: not bed.find("namespace", namespace), f"{namespace} is gone")


def state(bed: Testbed) -> dict[str, str]:
    """Every object of the kinds that are ours, with its version."""
    listed = json.loads(bed.kubectl("get", ",".join(KINDS), "--all-namespaces", "-o", "json").stdout)["items"]
    about = [(one["kind"], one["metadata"]) for one in listed]
    return {f"{kind}/{one.get('namespace', '')}/{one['name']}": one["resourceVersion"] for kind, one in about}


def run(capsys: pytest.CaptureFixture[str], action: str, namespace: str, *more: str) -> dict[str, Any]:
    """`setup ACTION`, and how often each thing was done."""
    assert main(["setup", action, "--namespace", namespace, "--json", *more]) == 0
    told = json.loads(capsys.readouterr().out)
    counts: dict[str, Any] = {}
    for one in told["objects"]:
        counts[one["action"]] = counts.get(one["action"], 0) + 1
    return {"changed": told["changed"], **counts}


def test_applying_twice_changes_nothing_and_removing_leaves_what_was(
    network: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(network)
    assert main(["setup", "apply", "--namespace", ONE, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "create    Namespace setup-one" in said and "+kind: PriorityClass" in said
    assert "7 objects would change, nothing was changed" in said and state(network) == before

    assert run(capsys, "apply", ONE) == {"changed": 7, "create": 7}
    after = state(network)
    assert len(after.keys() - before.keys()) == 7 and all(after[name] == before[name] for name in before)
    assert run(capsys, "apply", ONE) == {"changed": 0, "same": 7}
    assert state(network) == after, "not even a version has changed"

    assert run(capsys, "remove", ONE, "--dry-run") == {"changed": 0, "delete": 7}
    assert state(network) == after
    assert run(capsys, "remove", ONE) == {"changed": 7, "delete": 7}
    network.until(lambda: state(network).keys() == before.keys(), "nothing is left")
    assert run(capsys, "remove", ONE) == {"changed": 0}


def test_check_says_what_apply_has_made(network: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    def checked() -> dict[str, str]:
        main(["setup", "check", "--namespace", ONE, "--json"])
        return {row["name"]: row["sentence"].partition(":")[0] for row in json.loads(capsys.readouterr().out)["rows"]}

    assert checked()["hyperpod-base"] == checked()["fsx.csi.aws.com"] == checked()["metrics server"] == "missing"
    run(capsys, "apply", ONE)
    assert checked()["hyperpod-base"] == checked()["hyperpod-elastic"] == "present"


def test_what_was_changed_by_hand_is_shown_and_put_right(network: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "apply", ONE)
    patch = json.dumps([{"op": "remove", "path": "/rules/0"}])
    network.kubectl("patch", "role", "jupyter-hyperpod", "-n", ONE, "--type=json", "-p", patch)
    assert main(["setup", "apply", "--namespace", ONE, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "change    Role jupyter-hyperpod" in said and "    +  - jobs" in said and "1 object would change" in said
    assert run(capsys, "apply", ONE) == {"changed": 1, "change": 1, "same": 6}
    assert run(capsys, "apply", ONE) == {"changed": 0, "same": 7}


def test_what_namespaces_share_stays_until_the_last_is_removed(
    network: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "apply", ONE)
    assert run(capsys, "apply", TWO) == {"changed": 7, "create": 4, "change": 3}
    assert run(capsys, "apply", ONE) == {"changed": 0, "same": 7}, "neither takes the other's label"
    assert run(capsys, "remove", ONE) == {"changed": 7, "delete": 4, "release": 3}
    assert run(capsys, "apply", TWO) == {"changed": 0, "same": 7}
    assert network.get("clusterrole", "jupyter-hyperpod")["rules"], "the other's rights are whole"
    assert run(capsys, "remove", TWO) == {"changed": 7, "delete": 7}


def test_what_others_have_made_is_never_changed_or_deleted(
    network: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    network.kubectl("create", "namespace", ONE)
    network.kubectl("create", "clusterrole", "jupyter-hyperpod", "--verb=get", "--resource=pods")
    before = state(network)
    assert main(["setup", "apply", "--namespace", ONE]) == 1
    said = capsys.readouterr().err
    assert "ClusterRole jupyter-hyperpod is there already, made by somebody else, and differ" in said
    assert state(network) == before, "nothing was made before it was seen"

    network.kubectl("delete", "clusterrole", "jupyter-hyperpod")
    assert run(capsys, "apply", ONE) == {"changed": 6, "create": 6, "not ours": 1}
    assert run(capsys, "remove", ONE) == {"changed": 6, "delete": 6}
    assert network.get("namespace", ONE)["status"]["phase"] == "Active"
    network.kubectl("delete", "namespace", ONE)


def test_a_namespace_in_use_stays(network: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "apply", ONE)
    network.kubectl("create", "configmap", "mine", "-n", ONE, "--from-literal=a=b")
    network.kubectl("apply", "-f", "-", text=json.dumps(JOB))
    network.until(lambda: network.get("job", "hp-1-0", "-n", ONE)["status"].get("active"), "the job runs")
    assert main(["setup", "remove", "--namespace", ONE]) == 1
    assert "jobs run in setup-one, on 1 node: nothing was removed" in capsys.readouterr().err
    assert run(capsys, "apply", ONE) == {"changed": 0, "same": 7}

    network.kubectl("delete", "job", "hp-1-0", "-n", ONE)
    network.until(lambda: not network.get("pods", "-n", ONE)["items"], "the pod is gone")
    assert main(["setup", "remove", "--namespace", ONE]) == 0
    assert "stays     Namespace setup-one: it has configmaps/mine" in capsys.readouterr().out
    network.kubectl("delete", "configmap", "mine", "-n", ONE)
    assert run(capsys, "remove", ONE) == {"changed": 1, "delete": 1}


JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "hp-1-0", "namespace": ONE, "labels": {"app.kubernetes.io/managed-by": "jupyter-hyperpod"}},
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"no-such-node": "1"},
                "containers": [{"name": "main", "image": "x", "resources": {}}],
            }
        }
    },
}


def test_queues_need_kueue_and_come_and_go_with_the_rest(network: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ("--nodes", "p5.48xlarge:2", "m6i.xlarge:1")
    assert main(["setup", "apply", "--namespace", ONE, *nodes]) == 1
    assert "queues need Kueue with v1beta1 or v1beta2, and the cluster has none" in capsys.readouterr().err
    network.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions()}))
    try:
        found = "clusterqueues.kueue.x-k8s.io"
        network.until(lambda: network.kubectl("get", found, check=False).returncode == 0, "Kueue's kinds are served")
        assert run(capsys, "apply", ONE, *nodes) == {"changed": 11, "create": 11}
        assert run(capsys, "apply", ONE, *nodes) == {"changed": 0, "same": 11}
        queue = network.get(found, f"{ONE}-clusterqueue")["spec"]["resourceGroups"][0]
        assert queue["flavors"][0]["resources"][0] == {"name": "nvidia.com/gpu", "nominalQuota": 16}
        assert run(capsys, "remove", ONE) == {"changed": 11, "delete": 11}
        assert network.get(found)["items"] == []
    finally:
        network.kubectl("delete", "crd", *(one["metadata"]["name"] for one in definitions()))


def definitions() -> list[dict[str, Any]]:
    """Kueue's kinds, without its controller."""
    made = []
    for kind, versions in SCHEMAS.items():
        plural = f"{kind.lower()}s"
        made.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{plural}.kueue.x-k8s.io",
                    "annotations": {"api-approved.kubernetes.io": "tests"},
                },
                "spec": {
                    "group": "kueue.x-k8s.io",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                    "scope": "Namespaced" if kind == "LocalQueue" else "Cluster",
                    "versions": [
                        {
                            "name": "v1beta2",
                            "served": True,
                            "storage": True,
                            "schema": {"openAPIV3Schema": old(versions["v1beta2"])},
                        }
                    ],
                },
            }
        )
    return made


def old(schema: Any) -> Any:
    """A schema without the rules that Kubernetes 1.20 does not know."""
    if isinstance(schema, dict):
        return {name: old(value) for name, value in schema.items() if name != "x-kubernetes-validations"}
    return [old(one) for one in schema] if isinstance(schema, list) else schema


def test_who_may_not_is_told_and_nothing_is_made(
    network: Testbed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(network)
    with monkeypatch.context() as person:
        person.setenv("KUBECONFIG", str(network.kubeconfig(USER)))
        for action in ("apply", "remove"):
            assert main(["setup", action, "--namespace", ONE]) == 1
            assert "ask who runs the cluster for this right" in capsys.readouterr().err
    assert state(network) == before
