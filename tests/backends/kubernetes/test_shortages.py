"""What a cluster lacks for a job: each shortage is named once, with what to do, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes.components import DRIVERS, MISSING, OLD, OWN_CLASSES, PRESENT, components
from jupyter_hyperpod.backends.kubernetes.inquiry import needs_of
from jupyter_hyperpod.backends.kubernetes.parse import AGENT
from jupyter_hyperpod.backends.kubernetes.rights import RIGHTS, as_yaml, manifests, review, rules, subject
from jupyter_hyperpod.backends.kubernetes.shortages import ClusterFacts, JobNeeds, amount, parse_version, shortages
from jupyter_hyperpod.core.health import HealthRecord
from jupyter_hyperpod.system import portable

ALL = tuple((right, True) for right in RIGHTS)
GOOD = ClusterFacts(version="v1.29.3-eks-036c24b", rights=ALL, namespace={"status": {"phase": "Active"}})
WANTED = JobNeeds("team", 4, {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"})


def quota(hard: Mapping[str, str], used: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used or {}}}


def scoped(name: str, operator: str, values: list[str] | None = None) -> dict[str, Any]:
    one = {"scopeName": name, "operator": operator, **({"values": values} if values else {})}
    return {"scopeSelector": {"matchExpressions": [one]}}


def limit(**each: Any) -> dict[str, Any]:
    return {"spec": {"limits": [{"type": "Container", **each}]}}


def told(wanted: JobNeeds = WANTED, **facts: Any) -> list[tuple[str, bool]]:
    return [(str(shortage), shortage.fatal) for shortage in shortages(wanted, replace(GOOD, **facts))]


def test_a_good_cluster_lacks_nothing() -> None:
    assert told() == []
    assert told(quotas=[quota({"requests.cpu": "32", "pods": "4", "limits.memory": "256Gi", "services": "0"})]) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"),
        ("500m", "0.5"),
        ("1.5Gi", "1610612736"),
        ("2e3", "2000"),
        ("1E", "1000000000000000000"),
        ("1E2", "100"),
        ("100n", "0.0000001"),
        (".5", "0.5"),
        ("2.", "2"),
        ("-1k", "-1000"),
    ],
)
def test_amounts_are_those_of_kubernetes(text: str, number: str) -> None:
    assert amount(text) == Decimal(number)


@given(st.text("0123456789.eEmkKMGTPin+- \n", max_size=9) | st.text(max_size=5))
def test_any_text_is_an_amount_or_none(text: str) -> None:
    found = amount(text)
    assert found is None or found.is_finite()


@given(st.integers(0, 10**6), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_a_binary_amount_is_exact(number: int, unit: str) -> None:
    assert amount(f"{number}{unit}") == number * 1024 ** ("KMGT".index(unit[0]) + 1)


@pytest.mark.parametrize(
    ("level", "needs", "said"),
    [
        ("privileged", {"node_directories": True, "root": True}, []),
        ("baseline", {"node_directories": True, "root": True}, ["directories of the nodes"]),
        ("restricted", {"node_directories": True, "root": True}, ["directories of the nodes", "may run as root"]),
        ("restricted", {"root": True}, ["may run as root"]),
        ("restricted", {}, []),
    ],
)
def test_what_the_pod_security_standard_of_a_namespace_refuses(
    level: str, needs: dict[str, bool], said: list[str]
) -> None:
    space = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    found = told(replace(WANTED, **needs), namespace=space)
    assert len(found) == len(said) and all(fatal for _, fatal in found)
    assert all(word in sentence for word, (sentence, _) in zip(said, found, strict=True))


def test_who_pods_run_as_is_known_where_the_image_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "user_id", lambda: 1000)
    claim = {"image": "x", "claim": "data:/fsx"}
    for options, root in (
        (claim, False),
        ({**claim, "user": "0"}, True),
        ({**claim, "head": "pod"}, True),
        ({**claim, "head": "pod", "user": "1000"}, False),
    ):
        assert needs_of(options, "team", 1).root == root, options
    assert needs_of({"image": "x", "claim": "a/b:/b,a/c:/c:ro"}, "team", 1).claims == ("a",)
    assert needs_of({**claim, "host-path": "/x"}, "team", 1).node_directories


def test_every_right_that_is_missing_is_named_alone() -> None:
    for missing in RIGHTS:
        ((sentence, fatal),) = told(rights=[(right, right is not missing) for right in RIGHTS])
        assert missing.what in sentence and missing.purpose in sentence and "setup role" in sentence
        assert fatal == missing.needed


def test_a_quota_that_is_too_small_is_fatal_and_one_that_is_used_is_not() -> None:
    ((sentence, fatal),) = told(quotas=[quota({"requests.nvidia.com/gpu": "16"})])
    assert fatal and sentence.startswith("4 nodes need 32 of requests.nvidia.com/gpu, and the quota q is 16; ask for")
    ((sentence, fatal),) = told(quotas=[quota({"memory": "512Gi"}, {"memory": "384Gi"})])
    assert not fatal and "4 nodes need 256Gi of memory, and 128Gi of the quota q is free" in sentence
    ((sentence, fatal),) = told(JobNeeds("team", 1, {"cpu": "1500m"}), quotas=[quota({"limits.cpu": "1"})])
    assert fatal and sentence.startswith("1 node needs 1500m of limits.cpu")
    ((sentence, fatal),) = told(quotas=[quota({"count/jobs.batch": "3"})])
    assert fatal and "count/jobs.batch" in sentence


def test_a_quota_that_counts_what_a_job_does_not_name_is_fatal_unless_there_is_a_default() -> None:
    wanted = JobNeeds("team", 2, {"cpu": "1"})
    ((sentence, fatal),) = told(wanted, quotas=[quota({"limits.memory": "1Ti"})])
    assert fatal and "counts limits.memory, and the job asks for no memory" in sentence and "memory=AMOUNT" in sentence
    assert told(wanted, quotas=[quota({"limits.memory": "1Ti"})], limits=[limit(default={"memory": "1Gi"})]) == []
    ((sentence, _),) = told(wanted, quotas=[quota({"memory": "1Gi"})], limits=[limit(default={"memory": "1Gi"})])
    assert "2 nodes need 2Gi of memory" in sentence, "the default of the namespace counts"


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating"]}, True),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort"]}, True),
        (scoped("PriorityClass", "In", ["high"]), True),
        (scoped("PriorityClass", "In", ["low"]), False),
        (scoped("PriorityClass", "DoesNotExist"), False),
        (scoped("Terminating", "Exists"), False),
    ],
)  # fmt: skip
def test_a_quota_for_other_pods_does_not_count(spec: dict[str, Any], counts: bool) -> None:
    wanted = replace(WANTED, priority_class="high")
    assert bool(told(wanted, quotas=[quota({"pods": "1"}, **spec)])) == counts


def test_a_limit_of_the_namespace_is_named() -> None:
    ((sentence, fatal),) = told(limits=[limit(max={"cpu": "4"}, min={"memory": "1Gi"})])
    assert fatal and sentence.startswith("a node asks for 8 of cpu, and the namespace team allows at most 4")
    ((sentence, _),) = told(limits=[limit(min={"memory": "100Gi"})])
    assert "at least 100Gi" in sentence
    assert told(limits=[{"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}]}}]) == []


def test_classes_claims_queues_and_namespaces_have_to_exist() -> None:
    wanted = replace(WANTED, priority_class="high", elastic_priority_class="low", claims=("fsx",), queue="q")
    classes = {"high": {"value": 10}, "low": {"value": 1}}
    claim = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
    have = {
        "priority_classes": classes,
        "claims": {"fsx": claim},
        "groups": {"kueue.x-k8s.io": "v1beta1"},
        "queue": {"a": 1},
    }
    assert told(wanted, **have) == []
    unread: dict[str, Any] = {
        "priority_classes": dict.fromkeys(classes),
        "claims": {"fsx": None},
        "groups": None,
        "queue": None,
    }
    assert told(wanted, **unread) == [], "what may not be read is no shortage"
    for changed, words in (
        ({"priority_classes": {**classes, "low": {}}}, "there is no priority class low"),
        ({"priority_classes": {**classes, "low": {"value": 20}}}, "elastic nodes have a higher priority (20)"),
        ({"claims": {"fsx": {}}}, "there is no volume claim fsx in the namespace team"),
        ({"claims": {"fsx": {**claim, "status": {"phase": "Lost"}}}}, "is lost"),
        ({"claims": {"fsx": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}, "one node at a time (ReadWriteOnce)"),
        ({"groups": {}}, "Kueue, which would admit it, is not installed"),
        ({"queue": {}}, "there is no queue q"),
        ({"namespace": {}}, "there is no namespace team"),
        ({"namespace": {"status": {"phase": "Terminating"}}}, "is being deleted"),
        ({"version": "v1.19.16"}, "v1.19.16, 1.20 is the oldest"),
    ):
        ((sentence, _),) = told(wanted, **{**have, **changed})
        assert words in sentence
    once = {"fsx": {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}}}
    assert told(replace(wanted, nodes=1), **{**have, "claims": once}) == [], "one node may"
    heads = replace(wanted, claims=(), head_claim="fsx")
    assert told(heads, **{**have, "claims": once}) == [], "the head is one pod"
    assert "there is no volume claim fsx" in str(told(heads, **{**have, "claims": {"fsx": {}}}))


def test_a_token_that_nothing_renews_is_named_before_it_ends() -> None:
    ((sentence, fatal),) = told(token_left_s=1500.0, renewable=False)
    assert not fatal and "ends in 25 min and nothing renews it" in sentence
    ((sentence, fatal),) = told(token_left_s=-1.0, renewable=False)
    assert fatal and "has ended" in sentence
    assert told(token_left_s=1500.0, renewable=True) == told(token_left_s=90000.0, renewable=False) == []


def test_versions_are_read() -> None:
    assert parse_version("v1.29.3-eks-036c24b") == (1, 29)
    assert parse_version("v1.20.2") == (1, 20)
    assert parse_version("1.31+") == (1, 31)
    assert parse_version("") is parse_version("v1") is None


def test_the_role_allows_each_right_and_nothing_else() -> None:
    whom = subject("team", account="runner")
    made = {
        (one["kind"], one["metadata"]["name"]): one
        for one in yaml.safe_load_all(as_yaml(manifests("team", whom, True)))
    }
    assert [kind for kind, _ in made].count("ClusterRole") == 2
    given_by = [
        (verb, resource, group, one["kind"] == "ClusterRole")
        for one in made.values()
        for rule in one.get("rules", [])
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
    ]
    assert sorted(given_by) == sorted((r.verb, r.resource, r.group, r.cluster) for r in RIGHTS)
    assert "*" not in as_yaml(list(made.values()))
    plain = [rule for one in manifests("team", whom) for rule in one.get("rules", ())]
    changed = {what for rule in plain for what in rule["resources"] if "patch" in rule["verbs"]}
    assert changed == {"jobs", "pods"}, "changing nodes is not given unless it is asked for"
    bound = made[("RoleBinding", "jupyter-hyperpod-runner")]
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "runner", "namespace": "team"}]


def test_bindings_of_two_people_do_not_replace_each_other() -> None:
    names = {
        manifests("team", subject("team", **whom))[1]["metadata"]["name"]
        for whom in ({"user": "a@x"}, {"user": "a.x"}, {"user": "A@x"}, {"group": "a-x"}, {"user": "@"})
    }
    assert len(names) == 5


def test_a_review_asks_for_one_right() -> None:
    right = next(right for right in RIGHTS if right.resource == "pods/exec")
    asked = review(right, "team")["spec"]["resourceAttributes"]
    assert (asked["resource"], asked["subresource"], asked["namespace"]) == ("pods", "exec", "team")
    assert "namespace" not in review(next(r for r in RIGHTS if r.cluster), "team")["spec"]["resourceAttributes"]
    assert rules([right]) == [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": [right.verb]}]


def test_components_are_present_missing_or_too_old() -> None:
    node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    found = {one.name: one for one in components({"kueue.x-k8s.io": "v1alpha2", "jobset.x-k8s.io": "v1alpha2"}, [node])}
    states = {name: one.state for name, one in found.items()}
    assert states["Kueue"] == OLD and states["JobSet"] == PRESENT and states["HyperPod training operator"] == MISSING
    assert states["nvidia.com/gpu"] == PRESENT and states["vpc.amazonaws.com/efa"] == MISSING
    assert all(one.remedy for one in found.values() if one.state != PRESENT)
    assert list(components(None, None)) == []


DEVICES = {"nvidia.com/gpu": "8", "aws.amazon.com/neuron": "16", "vpc.amazonaws.com/efa": "32"}
WHOLE: dict[str, dict[str, Any]] = {
    "groups": {
        "kueue.x-k8s.io": "v1beta2",
        "sagemaker.amazonaws.com": "v1",
        "jobset.x-k8s.io": "v1",
        "metrics.k8s.io": "v1",
    },
    "devices": DEVICES,
    "drivers": dict.fromkeys(DRIVERS),
    "classes": {name: {"value": 1} for name in OWN_CLASSES},
    "agents": {"health agents": None},
}


def states(**parts: Any) -> dict[str, str]:
    """The state of each component of a cluster that has these parts."""
    notes = dict.fromkeys([AGENT] * len(parts["agents"]), json.dumps(HealthRecord("watch").to_json()))
    node = {"metadata": {"name": "n1", "annotations": notes}, "status": {"allocatable": parts["devices"]}}
    drivers = [{"metadata": {"name": name}} for name in parts["drivers"]]
    found = list(components(parts["groups"], [node], drivers, parts["classes"]))
    assert all(bool(one.remedy) == (one.state != PRESENT) for one in found)
    return {one.name: one.state for one in found}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in WHOLE.items() for name in names])
def test_each_component_that_is_missing_is_the_one_that_is_named(part: str, name: str) -> None:
    assert set(states(**WHOLE).values()) == {PRESENT}
    left = {key: value for key, value in WHOLE[part].items() if key != name}
    left |= {name: {}} if part == "classes" else {}  # which are asked for by name
    found = states(**{**WHOLE, part: left})
    assert list(found.values()).count(MISSING) == 1
    missing = next(one for one, state in found.items() if state == MISSING)
    assert missing == name or part == "groups"
