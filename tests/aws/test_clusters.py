"""HyperPod clusters listed, described and made a context. Against moto, not against AWS."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.login import read_credential
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.aws import clusters
from jupyter_hyperpod.control.clusters.standing import standing
from tests.aws.clouds import (
    AUTHORITY,
    REGION,
    backend,
    eks_arn,
    group,
    make_cluster,
    node_told,
    told,
)
from tests.aws.conftest import SECRET, Command


def record(command: Command, *words: str) -> Any:
    status, out, err = command(*words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.usefixtures("aws")
def test_clusters_are_listed_with_their_instances(command: Command) -> None:
    make_cluster("llama", [group("workers", 3), group("head", 1, "ml.m5.xlarge")], eks="llama-eks")
    make_cluster("old", [group("compute", 2)])
    told("old", ClusterStatus="Failed", FailureMessage="no capacity in us-west-2a")
    workers = {**group("workers", 0), "CurrentCount": 2, "TargetCount": 3, "Status": "Degraded"}
    del workers["InstanceCount"]
    told("llama", InstanceGroups=[workers])
    found = record(command, "list-cluster", "--provider", "aws", "--region", REGION)
    assert [(one["name"], one["status"], one["orchestrator"], one["message"]) for one in found] == [
        ("llama", "InService", "EKS", ""),
        ("old", "Failed", "Slurm", "no capacity in us-west-2a"),
    ]
    assert found[0]["eks"] == eks_arn("llama-eks")
    [of_llama] = found[0]["groups"]
    assert (of_llama["current"], of_llama["target"], of_llama["status"]) == (2, 3, "Degraded")
    status, out, _ = command("list-cluster", "--region", REGION)
    assert status == 0 and "workers 2/3 ml.g5.xlarge" in out and "no capacity in us-west-2a" in out
    assert [one["name"] for one in record(command, "list-cluster", "--region", REGION, "--clusters", "old")] == ["old"]
    assert command("list-cluster", "--region", REGION, "--output", "json")[1].startswith("[")


@pytest.mark.usefixtures("aws")
def test_lists_of_several_pages_are_whole(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PAGE", 2)
    for number in range(5):
        make_cluster(f"c{number}", [group("workers", number)])
    assert len(record(command, "list-cluster", "--region", REGION)) == 5
    found = record(command, "describe-cluster", "c4", "--region", REGION)
    assert [node["id"] for node in found["nodes"]] == [f"workers-{number}" for number in range(4)]


@pytest.mark.usefixtures("aws")
def test_no_cluster_is_a_sentence(command: Command) -> None:
    assert f"no HyperPod cluster in {REGION}" in command("list-cluster", "--region", REGION)[1]


@pytest.mark.usefixtures("aws")
def test_a_cluster_is_described_with_its_nodes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cluster("llama", [group("workers", 2)], eks="llama-eks")
    node_told("llama", "workers-1", Placement={"AvailabilityZone": "us-west-2b"}, PrivateDnsHostname="ip-10-0-0-1")
    backend().clusters["llama"].nodes["workers-0"].status = "DeepHealthCheckInProgress"
    found = record(command, "describe-cluster", "llama", "--region", REGION)
    assert [(node["status"], node["zone"], node["group"]) for node in found["nodes"]] == [
        ("DeepHealthCheckInProgress", "", "workers"),
        ("Running", "us-west-2b", "workers"),
    ]
    status, out, _ = command("describe-cluster", found["arn"], "--region", REGION)
    assert status == 0 and "ip-10-0-0-1" in out
    assert f"set-cluster-context --cluster-name llama --region {REGION}" in out
    monkeypatch.setattr(clusters, "PLACED", 1)
    assert "zones are asked for where" in command("describe-cluster", "llama", "--region", REGION)[1]


@pytest.mark.usefixtures("aws")
def test_a_cluster_of_eks_becomes_the_current_context(command: Command, home: Path) -> None:
    make_cluster("llama", [group("workers", 1)], eks="llama-eks")
    assert "no context in" in command("list-cluster")[1]
    words = ("set-cluster-context", "--cluster-name", "llama", "--region", REGION)
    done = record(command, *words, "--namespace", "team-a")
    path = home / "kube" / "config"
    assert (done["context"], done["kubeconfig"], done["changed"]) == (eks_arn("llama-eks"), str(path), True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and SECRET not in path.read_text()
    assert sorted(each.name for each in path.parent.iterdir()) == ["config"]
    access = read_access()
    assert (access.namespace, access.ca) == ("team-a", AUTHORITY)
    assert access.server.startswith("https://") and access.plugin is not None
    assert access.plugin.command == "aws" and access.plugin.arguments[:5] == (
        *("--region", REGION, "eks", "get-token", "--cluster-name"),
    )
    before = path.stat()
    status, out, _ = command(*words)
    assert status == 0 and "already" in out and "namespace team-a" in out
    assert path.stat().st_ino == before.st_ino
    # what the cluster picker shows
    shown = [one["context"] for one in standing()["clusters"] if one["title"] == "Kubernetes"]
    assert shown == [eks_arn("llama-eks")]
    assert record(command, "get-cluster-context")["context"] == eks_arn("llama-eks")
    assert f"EKS cluster llama-eks in {REGION}" in command("get-cluster-context")[1]
    assert [one["current"] for one in record(command, "list-cluster")] == [True]


@pytest.mark.usefixtures("aws")
def test_tokens_come_from_the_program_of_aws(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cluster("llama", [group("workers", 1)], eks="llama-eks")
    monkeypatch.setenv("PATH", str(home / "bin"))
    words = ("set-cluster-context", "--cluster-name", "llama", "--region", REGION)
    assert "which was not found: install the AWS CLI" in command(*words)[1]
    program = home / "bin" / "aws"
    program.parent.mkdir()
    token = {"kind": "ExecCredential", "status": {"token": "k8s-aws-v1.x"}}
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(token))})\n")
    program.chmod(0o700)
    assert "not found" not in command(*words)[1]
    assert read_credential(read_access()).token == "k8s-aws-v1.x"


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("groups", "roles", "node"),
    [
        (("compute", "my-login", "controller-machine"), (), "my-login-my-login-0"),
        (("compute", "controller-machine"), (), "controller-machine-controller-machine-0"),
        (("a", "b"), ("Compute", "Controller"), "b-b-0"),
        (("a", "b"), (), "GROUP-INSTANCE"),
    ],
)
def test_a_cluster_of_slurm_says_how_to_log_in(
    command: Command, home: Path, groups: tuple[str, ...], roles: tuple[str, ...], node: str
) -> None:
    made = [group(name, 1) for name in groups]
    make_cluster("old", made)
    if roles:
        kept = backend().clusters["old"].describe()["InstanceGroups"]
        pairs = zip(kept, roles, strict=True)
        told("old", InstanceGroups=[{**one, "SlurmConfig": {"NodeType": role}} for one, role in pairs])
    status, out, err = command("set-cluster-context", "--cluster-name", "old", "--region", REGION)
    assert (status, out) == (1, "")
    assert f"`aws ssm start-session --target sagemaker-cluster:old_{node} --region {REGION}`" in err
    assert not (home / "kube").exists()
    assert node in command("describe-cluster", "old", "--region", REGION)[1]


@pytest.mark.usefixtures("aws")
def test_a_wrong_name_is_answered_with_near_names(command: Command) -> None:
    make_cluster("llama-train", [group("workers", 1)])
    for verb in (["describe-cluster"], ["set-cluster-context", "--cluster-name"]):
        status, _, err = command(*verb, "lama-train", "--region", REGION)
        assert status == 2 and f"no HyperPod cluster 'lama-train' in {REGION} (did you mean llama-train?)" in err
    status, _, err = command("describe-cluster", "x", "--region", "eu-west-1")
    assert status == 2 and "is it in another region" in err
    assert "no name of a HyperPod cluster" in command("describe-cluster", "a b", "--region", REGION)[2]


@pytest.mark.usefixtures("aws")
def test_an_eks_cluster_that_is_gone_or_not_ready_is_a_sentence(command: Command, home: Path) -> None:
    make_cluster("llama", [group("workers", 1)], eks="llama-eks")
    told("llama", Orchestrator={"Eks": {"ClusterArn": eks_arn("other")}})
    words = ("set-cluster-context", "--cluster-name", "llama", "--region", REGION)
    status, _, err = command(*words)
    assert status == 2 and "the EKS cluster other, which orchestrates llama, is not there" in err
    assert not (home / "kube").exists()


@pytest.mark.usefixtures("aws")
def test_other_entries_stay_as_they_are(command: Command, home: Path) -> None:
    make_cluster("llama", [group("workers", 1)], eks="llama-eks")
    path = home / "kube" / "config"
    path.parent.mkdir()
    other = {
        "current-context": "mine",
        "preferences": {"colors": True},
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "extensions": [{"name": "x"}]}}],
        "contexts": [{"name": "mine", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "users": [{"name": "u", "user": {"token": SECRET, "expires": "2030-01-31T12:00:00Z"}}],
    }
    path.write_text(yaml.safe_dump(other).replace("'2030-01-31T12:00:00Z'", "2030-01-31T12:00:00Z"))
    path.chmod(0o644)
    record(command, "set-cluster-context", "--cluster-name", "llama", "--region", REGION)
    text = path.read_text()
    now = yaml.safe_load(text)
    for key in ("clusters", "contexts", "users"):
        assert now[key][0] == other[key][0] and len(now[key]) == 2  # type: ignore[index]
    assert now["preferences"] == other["preferences"] and now["current-context"] == eks_arn("llama-eks")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one["context"] for one in record(command, "list-cluster")] == [eks_arn("llama-eks"), "mine"]


def test_options_of_aws_belong_to_aws(command: Command) -> None:
    status, _, err = command("list-cluster", "--provider", "kubeconfig", "--region", REGION)
    assert status == 2 and "--region belongs to --provider aws" in err


@pytest.mark.parametrize("verb", ["list-cluster", "describe-cluster", "set-cluster-context"])
def test_help_says_what_was_verified(verb: str, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "tested against moto" in " ".join(capsys.readouterr().out.split())
