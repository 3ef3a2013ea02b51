"""A stand-in for AWS: moto, within this process, and what moto 5.2 does not keep of HyperPod clusters, added to it.

moto keeps no orchestrator, no zones and no status of groups, makes up a certificate that is none, and answers with the
first page of nodes for ever, because it tells them apart by an ARN that they lack.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import boto3
import trustme
from moto.eks.models import eks_backends
from moto.sagemaker.models import ClusterNode, SageMakerModelBackend, sagemaker_backends

ACCOUNT, REGION = "123456789012", "us-west-2"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/hyperpod"
AUTHORITY = trustme.CA().cert_pem.bytes().decode()


def eks_arn(name: str) -> str:
    return f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{name}"


def group(name: str, count: int, instance_type: str = "ml.g5.xlarge") -> dict[str, Any]:
    script = {"SourceS3Uri": "s3://sagemaker-lifecycle", "OnCreate": "on_create.sh"}
    return {
        "InstanceGroupName": name,
        "InstanceCount": count,
        "InstanceType": instance_type,
        "LifeCycleConfig": script,
        "ExecutionRole": ROLE,
        "ThreadsPerCore": 1,
    }


def make_cluster(name: str, groups: Sequence[dict[str, Any]], eks: str = "") -> None:
    """Make a HyperPod cluster, orchestrated by the EKS cluster of that name where one is given, else by Slurm."""
    boto3.client("sagemaker", region_name=REGION).create_cluster(ClusterName=name, InstanceGroups=groups)
    for node in backend().clusters[name].nodes.values():
        node.arn = node.instance_id
    if eks:
        boto3.client("eks", region_name=REGION).create_cluster(name=eks, roleArn=ROLE, resourcesVpcConfig={})
        made = eks_backends[ACCOUNT][REGION].clusters[eks]
        made.certificateAuthority = {"data": base64.b64encode(AUTHORITY.encode()).decode()}
        told(name, Orchestrator={"Eks": {"ClusterArn": eks_arn(eks)}})


def backend() -> SageMakerModelBackend:
    return sagemaker_backends[ACCOUNT][REGION]


def told(name: str, **more: Any) -> None:
    """Let moto say more about a cluster, as AWS does."""
    cluster = backend().clusters[name]
    described = cluster.describe()
    cluster.describe = lambda: {**described, **more}


def node_told(name: str, node: str, **more: Any) -> None:
    """Let moto say more about a node, where it describes that one alone."""
    found: ClusterNode = backend().clusters[name].nodes[node]
    described = found.describe()
    found.describe = lambda: {**described, **more}  # type: ignore[method-assign]
