"""What is ours in a cluster, as data; a real API gets it in tests/kubernetes/test_setup.py."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from jupyter_hyperpod.backends.kubernetes import rights
from jupyter_hyperpod.backends.kubernetes.health import node_check
from jupyter_hyperpod.backends.kubernetes.health.node_check import NAMESPACE
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.setup import applying, node_groups
from jupyter_hyperpod.control.setup.health_objects import HealthAgents
from jupyter_hyperpod.control.setup.own_objects import BASE, ELASTIC, label, own_objects
from jupyter_hyperpod.core.errors import ClusterError

GROUPS = node_groups.parse(["p5.48xlarge:2", "m6i.xlarge:1"])


def made(namespace: str = "alpha", **changes: Any) -> list[dict[str, Any]]:
    return own_objects(namespace, rights.subject(namespace), **{"groups": GROUPS, **changes})


def test_each_object_has_its_place_in_the_api_and_the_label_of_its_namespace() -> None:
    assert [applying.place(one) for one in made(remedies=True)] == [
        "/api/v1/namespaces/alpha",
        "/apis/scheduling.k8s.io/v1/priorityclasses/hyperpod-base",
        "/apis/scheduling.k8s.io/v1/priorityclasses/hyperpod-elastic",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/alpha/roles/jupyter-hyperpod",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/alpha/rolebindings/jupyter-hyperpod-default",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/jupyter-hyperpod",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/jupyter-hyperpod-alpha-default",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/jupyter-hyperpod-remedies",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/jupyter-hyperpod-remedies-alpha-default",
        "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/alpha-p5-48xlarge",
        "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/alpha-m6i-xlarge",
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/alpha-clusterqueue",
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/alpha/localqueues/alpha-localqueue",
    ]
    assert all(one["metadata"]["labels"][label("alpha")] == "" for one in made(remedies=True))
    assert not any("kueue" in one["apiVersion"] for one in made(groups=()))
    assert all(one["apiVersion"].endswith("/v1beta1") for one in made(kueue="v1beta1")[-4:])


def test_nodes_that_may_be_lost_never_displace_others() -> None:
    classes = {one["metadata"]["name"]: one for one in made() if one["kind"] == "PriorityClass"}
    assert classes[BASE]["value"] > 0 > classes[ELASTIC]["value"] and classes[ELASTIC]["preemptionPolicy"] == "Never"


AGENTS = HealthAgents("registry.example/train:3", "/opt/environment/bin/python", ("/fsx",))


def agents(wish: HealthAgents = AGENTS) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in own_objects("alpha", {"kind": "User", "name": "ann"}, agents=wish)[7:]}


def test_health_agents_have_a_namespace_and_an_account_of_their_own() -> None:
    found = agents()
    assert list(found) == ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"]
    assert applying.place(found["DaemonSet"]).endswith(f"/namespaces/{NAMESPACE}/daemonsets/jupyter-hyperpod-health")
    assert applying.place(found["ServiceAccount"]).startswith(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/")
    assert all(one["metadata"]["labels"][label("alpha")] == "" for one in found.values())
    assert len(agents()) + 7 == len(own_objects("alpha", {"kind": "User", "name": "ann"}, agents=AGENTS))


def test_who_gets_remedies_may_check_nodes_where_there_are_agents() -> None:
    person = {"kind": "User", "name": "ann"}
    plain = own_objects("alpha", person, agents=AGENTS)
    more = [one for one in own_objects("alpha", person, remedies=True, agents=AGENTS) if one not in plain]
    there = [one for one in more if one["metadata"].get("namespace") == NAMESPACE]
    assert [one["kind"] for one in there] == ["Role", "RoleBinding"]
    assert there[1]["subjects"] == [person] and there[1]["roleRef"]["name"] == there[0]["metadata"]["name"]
    assert not [one for one in made(remedies=True) if one["metadata"].get("namespace") == NAMESPACE]
    other = own_objects("alpha", {"kind": "User", "name": "bob"}, remedies=True, agents=AGENTS)
    names = {one["metadata"]["name"] for one in other if one["metadata"].get("namespace") == NAMESPACE}
    assert not names & {one["metadata"]["name"] for one in there}, "nobody takes the right of another away"


@pytest.mark.parametrize("version", ["1.25", "1.33"])
def test_a_check_is_a_pod_like_an_agents_that_may_do_less_and_use_more(version: str) -> None:
    agents_ = agents()["DaemonSet"]
    job = node_check.job(agents_, "n1", ["jupyter_hyperpod.health.check", "--deep"], "health-check-1", 60)
    kubernetes_validate.validate(job, version, strict=True)
    pod, of_agent = job["spec"]["template"]["spec"], agents_["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == [AGENTS.python, "-m", "jupyter_hyperpod.health.check", "--deep"]
    assert container["securityContext"] == of_agent["containers"][0]["securityContext"]
    assert pod["tolerations"] == [{"operator": "Exists"}] and not pod["automountServiceAccountToken"]
    assert pod["priorityClassName"] == ELASTIC and "limits" not in container["resources"]
    assert "serviceAccountName" not in pod and job["spec"]["backoffLimit"] == 0
    assert of_agent["containers"][0]["name"] == "agent", "the DaemonSet itself is left as it is"
    assert node_check.recovery(agents_) == "Automatic" and node_check.recovery({"spec": {}}) == ""
    assert node_check.recovery(agents(HealthAgents("x:1", "/x", recovery="None"))["DaemonSet"]) == "None"
    with pytest.raises(ClusterError, match="is not as `setup apply --health` makes it"):
        node_check.job({"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}, "n1", [], "x", 60)


@pytest.mark.parametrize("wish", [AGENTS, HealthAgents("x:1", "/usr/bin/python3", kernel_log=True, recovery="None")])
@pytest.mark.parametrize("version", ["1.25", "1.33"])
def test_agents_fit_the_schemas_of_kubernetes(wish: HealthAgents, version: str) -> None:
    for one in agents(wish).values():
        kubernetes_validate.validate(one, version, strict=True)


def test_an_agent_has_no_privileges_that_nobody_asked_for() -> None:
    pod = agents()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    assert container["securityContext"] == least and not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    places = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert places == {"/var/log": True, "/fsx": True, "/tmp": False}
    assert pod["priorityClassName"] == BASE and pod["tolerations"] == [{"operator": "Exists"}]
    whole = agents(HealthAgents("x:1", "/usr/bin/python3", kernel_log=True))["DaemonSet"]["spec"]["template"]["spec"]
    assert whole["containers"][0]["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"path": "/dev/kmsg", "type": "CharDevice"} in [one.get("hostPath") for one in whole["volumes"]]


def test_what_the_server_keeps_is_no_difference() -> None:
    one = made()[1]
    kept = {"uid": "1", "resourceVersion": "7", "managedFields": [{}], "creationTimestamp": "2030-01-01T00:00:00Z"}
    there = {**one, "metadata": {**one["metadata"], **kept}, "status": {"phase": "Active"}}
    assert applying._diff(there, one) == ""
    changed = applying._diff(there, {**one, "value": 5}).splitlines()
    assert "-value: 1000" in changed and "+value: 5" in changed and len(changed) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["apply", "--hashes"], "--hashes belongs to `setup image`"),
        (["remove", "--account", "me"], "--account belongs to `setup role` and `setup apply`"),
        (["check", "--dry-run"], "--dry-run belongs to `setup apply` and `setup remove`"),
        (["apply", "--namespace", "A_b"], "expected small letters"),
        (["check", "--health", "x:1"], "--health belongs to `setup apply`"),
    ],
)
def test_bad_use_is_explained(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", *words]) == 2
    assert said in capsys.readouterr().err
