"""A cluster of EKS in a kubeconfig: whole or not at all, once, and without a loss."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_hyperpod.control.aws import kubeconfig_entry
from jupyter_hyperpod.control.aws.kubeconfig_entry import EksCluster, connect, merged
from jupyter_hyperpod.core.errors import ClusterError

PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
ARN = "arn:aws:eks:us-west-2:123456789012:cluster/c"
EKS = EksCluster(ARN, "c", "us-west-2", "https://c.example", PEM)


def test_the_same_again_changes_nothing() -> None:
    name, first = merged({}, EKS, "team", "research")
    assert (name, first["contexts"][0]["context"]["namespace"]) == (ARN, "team")
    assert first["users"][0]["user"]["exec"]["env"] == [{"name": "AWS_PROFILE", "value": "research"}]
    assert merged(first, EKS, "", "") == (ARN, first)


def test_a_moved_cluster_gets_its_new_address() -> None:
    _, first = merged({}, EKS, "", "")
    moved = EksCluster(ARN, "c", "us-west-2", "https://d.example", PEM)
    assert [one["cluster"]["server"] for one in merged(first, moved, "", "")[1]["clusters"]] == ["https://d.example"]


def test_what_a_person_has_changed_stays() -> None:
    """Another name of the context, as by `aws eks update-kubeconfig --alias`, and a role for tokens."""
    _, there = merged({}, EKS, "team", "")
    there["contexts"][0]["name"] = "train"
    there["users"][0]["user"]["exec"]["args"] += ["--role-arn", "arn:aws:iam::123456789012:role/r"]
    assert merged(there, EKS, "", "") == ("train", {**there, "current-context": "train"})


def test_another_user_of_the_cluster_is_another_context() -> None:
    there = {"contexts": [{"name": "mine", "context": {"cluster": ARN, "user": "me"}}]}
    name, made = merged(there, EKS, "", "")
    assert name == ARN and [one["name"] for one in made["contexts"]] == ["mine", ARN]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    assert connect(link, EKS, "", "") == (ARN, True)
    assert link.is_symlink() and yaml.safe_load(real.read_text())["current-context"] == ARN


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "config"
    assert connect(path, EKS, "", "") == (ARN, True)
    path.chmod(0o644)
    assert connect(path, EKS, "", "") == (ARN, True) and path.stat().st_mode & 0o777 == 0o600
    assert connect(path, EKS, "", "") == (ARN, False)


@pytest.mark.parametrize("text", ["a: [", "- a", "clusters: [1]", "\0"])
def test_what_is_no_kubeconfig_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError, match="KUBECONFIG"):
        connect(path, EKS, "", "")
    assert path.read_text() == text and [each.name for each in tmp_path.iterdir()] == ["config"]


@pytest.mark.parametrize(
    "change", [{"server": "http://c.example"}, {"authority": base64.b64encode(b"\xff\xfe").decode()}]
)
def test_what_could_not_be_used_is_not_written(change: dict[str, Any], tmp_path: Path) -> None:
    fields = {"arn": ARN, "name": "c", "region": "us-west-2", "server": EKS.server, "authority": PEM}
    with pytest.raises(ClusterError):
        connect(tmp_path / "config", EksCluster(**{**fields, **change}), "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text("kind: Config\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ClusterError, match="cannot be written: No space left on device; set KUBECONFIG"):
        connect(path, EKS, "", "")
    assert path.read_text() == "kind: Config\n" and [each.name for each in tmp_path.iterdir()] == ["config"]


def test_the_lock_of_kubectl_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig_entry, "LOCK_S", 0.1)
    lock = tmp_path / "config.lock"
    lock.touch()
    with pytest.raises(ClusterError, match="being changed by another program; if none is, delete"):
        connect(tmp_path / "config", EKS, "", "")
    assert lock.exists() and not (tmp_path / "config").exists()


WRONG = {
    "clusters": "clusters: 5",
    "contexts": "contexts: [a]",
    "another context": "contexts: [{name: a, context: [1]}]",
    "variables": f"users: [{{name: '{ARN}', user: {{exec: {{args: [eks, get-token, c, us-west-2], env: 5}}}}}}]",
    "a variable": f"users: [{{name: '{ARN}', user: {{exec: {{args: [eks, get-token, c, us-west-2], env: [A=B]}}}}}}]",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_is_partly_wrong_is_kept_or_refused_in_words(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(before := WRONG[wrong] + "\n")
    try:
        assert connect(path, EKS, "", "research")[1]
    except ClusterError as error:
        assert path.read_text() == before and str(error)
    assert [one.name for one in tmp_path.iterdir()] == ["config"]
