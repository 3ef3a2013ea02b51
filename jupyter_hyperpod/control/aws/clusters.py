"""HyperPod clusters and their nodes, as AWS tells of them. Reading an answer is apart from asking, and pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.errors import Denied, HyperpodError, NotFound, SpecError
from ...core.options import near_matches
from .connection import Aws, asking

EKS, SLURM = "EKS", "Slurm"
PLACED = 64  # so many nodes are asked for their zones, one request each
PAGE = 100
_ARN = r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:cluster/[a-zA-Z0-9-]+"
_NAME = re.compile(rf"[a-zA-Z0-9](-*[a-zA-Z0-9]){{0,62}}|{_ARN}")
_LOGIN_GROUP = re.compile(r"login|controller|head", re.I)

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Instances of one kind. ``role``: Controller, Login or Compute, where AWS keeps that of a Slurm cluster."""

    name: str
    instance_type: str
    current: int
    target: int
    status: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class HyperpodCluster:
    """A cluster. ``message``: why it failed, or why AWS tells no more of it; ``eks``: the ARN of its EKS cluster."""

    name: str
    arn: str
    status: str
    region: str
    created: str = ""
    orchestrator: str = ""
    eks: str = ""
    message: str = ""
    groups: tuple[InstanceGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node. ``zone`` is "" where it was not asked for."""

    id: str
    group: str
    instance_type: str
    status: str
    message: str = ""
    zone: str = ""
    host: str = ""
    launched: str = ""


def clusters(aws: Aws, names: Sequence[str] = (), say: Say = lambda _: None) -> list[HyperpodCluster]:
    """The clusters of the region, or those that are named. Raises HyperpodError.

    One that AWS does not describe to these credentials is told of with the reason; one that is gone by now is left out.
    """
    found = []
    for summary in [{"ClusterName": name} for name in names] or _summaries(aws):
        name = str(summary["ClusterName"])
        say(f"asking AWS about {name}")
        try:
            found.append(cluster(aws, name))
        except Denied as error:
            if names:
                raise
            found.append(replace(cluster_of(summary, aws.region), orchestrator="", message=str(error)))
        except NotFound:
            if names:
                raise
    return found


def cluster(aws: Aws, name: str) -> HyperpodCluster:
    """One cluster, by its name or ARN. Raises HyperpodError; NotFound names those that are nearly called that."""
    if not _NAME.fullmatch(name):
        raise SpecError(f"{name[:80]!r} is no name of a HyperPod cluster; expected letters, digits and -")
    try:
        with asking("sagemaker:DescribeCluster", aws.region):
            return cluster_of(aws.sagemaker.describe_cluster(ClusterName=name), aws.region)
    except NotFound:
        raise NotFound(_absence(aws, name)) from None


def nodes(aws: Aws, name: str) -> list[ClusterNode]:
    """The nodes of a cluster, by group. Raises HyperpodError."""
    with asking("sagemaker:ListClusterNodes", aws.region):
        pages = aws.sagemaker.get_paginator("list_cluster_nodes").paginate(
            ClusterName=name, PaginationConfig={"PageSize": PAGE}
        )
        found = [node_of(one) for page in pages for one in page.get("ClusterNodeSummaries") or []]
    return sorted(found, key=lambda node: (node.group, node.id))


def placed(aws: Aws, name: str, found: Sequence[ClusterNode], say: Say) -> tuple[list[ClusterNode], str]:
    """The nodes with their zones, and a sentence where these are not told; AWS is asked for each."""
    if len(found) > PLACED:
        return list(found), f"zones are asked for where a cluster has at most {PLACED} nodes; this one has {len(found)}"
    told = []
    for node in found:
        say(f"asking AWS where {node.id} is")
        try:
            with asking("sagemaker:DescribeClusterNode", aws.region):
                answer = aws.sagemaker.describe_cluster_node(ClusterName=name, NodeId=node.id)
        except NotFound:
            continue  # it has left meanwhile
        except HyperpodError as error:
            return list(found), f"zones are not shown: {error}"
        told.append(node_of(answer.get("NodeDetails") or {}, node))
    return told, ""


def cluster_of(told: Mapping[str, Any], region: str) -> HyperpodCluster:
    """What AWS says of a cluster. Pure."""
    orchestrator = told.get("Orchestrator") or {}
    eks = str((orchestrator.get("Eks") or {}).get("ClusterArn") or "")
    listed = [*(told.get("InstanceGroups") or []), *(told.get("RestrictedInstanceGroups") or [])]
    return HyperpodCluster(
        str(told.get("ClusterName") or ""),
        str(told.get("ClusterArn") or ""),
        str(told.get("ClusterStatus") or ""),
        region,
        _time(told.get("CreationTime")),
        EKS if eks else SLURM,  # of a Slurm cluster older answers say nothing
        eks,
        str(told.get("FailureMessage") or ""),
        tuple(_group(one) for one in listed),
    )


def _group(told: Mapping[str, Any]) -> InstanceGroup:
    several = told.get("InstanceRequirements") or {}
    kinds = several.get("CurrentInstanceTypes") or several.get("DesiredInstanceTypes") or []
    return InstanceGroup(
        str(told.get("InstanceGroupName") or ""),
        str(told.get("InstanceType") or "/".join(map(str, kinds))),
        int(told.get("CurrentCount") or 0),
        int(told.get("TargetCount") or 0),
        str(told.get("Status") or ""),
        str((told.get("SlurmConfig") or {}).get("NodeType") or ""),
    )


def node_of(told: Mapping[str, Any], known: ClusterNode | None = None) -> ClusterNode:
    """What AWS says of a node, in a list or alone. Pure."""
    status = told.get("InstanceStatus") or {}
    return ClusterNode(
        str(told.get("InstanceId") or (known.id if known else "")),
        str(told.get("InstanceGroupName") or ""),
        str(told.get("InstanceType") or ""),
        str(status.get("Status") or ""),
        str(status.get("Message") or ""),
        str((told.get("Placement") or {}).get("AvailabilityZone") or ""),
        str(told.get("PrivateDnsHostname") or ""),
        _time(told.get("LaunchTime")),
    )


def login_command(found: HyperpodCluster, of: Sequence[ClusterNode]) -> str:
    """How to reach the login node of a Slurm cluster, or else its controller. Pure."""
    roles = {group.name: group.role for group in found.groups}

    def rank(node: ClusterNode) -> tuple[bool, bool, bool, bool]:
        role, group = roles.get(node.group, ""), node.group
        return role != "Login", role != "Controller", "login" not in group.lower(), not _LOGIN_GROUP.search(group)

    running = [node for node in of if node.status == "Running"] or list(of)
    best = min(running, key=rank, default=None)
    certain = best is not None and not all(rank(best))
    group, node = (best.group, best.id) if best is not None and certain else ("GROUP", "INSTANCE")
    identity = found.arn.rpartition("/")[2] or "CLUSTER"
    return f"aws ssm start-session --target sagemaker-cluster:{identity}_{group}-{node} --region {found.region}"


def _summaries(aws: Aws) -> Iterator[Mapping[str, Any]]:
    with asking("sagemaker:ListClusters", aws.region):
        pages = aws.sagemaker.get_paginator("list_clusters").paginate(
            SortBy="NAME", SortOrder="Ascending", PaginationConfig={"PageSize": PAGE}
        )
        found = [one for page in pages for one in page.get("ClusterSummaries") or []]
    return iter(found)


def _absence(aws: Aws, name: str) -> str:
    sentence = f"there is no HyperPod cluster {name!r} in {aws.region}"
    try:
        known = [str(one["ClusterName"]) for one in _summaries(aws)]
    except HyperpodError:
        return f"{sentence}; `jupyter hyperpod list-cluster --provider aws` lists clusters"
    if not known:
        return f"{sentence}, nor any other for these credentials: is it in another region (--region)?"
    return f"{sentence}{near_matches(name, known, 3)}; `jupyter hyperpod list-cluster --region {aws.region}` lists them"


def _time(moment: Any) -> str:
    return moment.isoformat(timespec="seconds") if hasattr(moment, "isoformat") else str(moment or "")
