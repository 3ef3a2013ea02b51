"""Renders the folder that makes an EKS cluster for jobs: eksctl's file, values of charts, manifests, a guide. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...backends.kubernetes import rights
from ...core.errors import SpecError
from ...core.units import plural
from . import volumes
from .node_groups import BLOCK, EFA, SPOT, NodeGroup
from .own_objects import own_objects, queue_names
from .versions import table
from .volumes import SharedVolume

CLUSTER, OPERATOR, VOLUMES, OURS, GUIDE = "cluster.yaml", "operator.yaml", "volumes.yaml", "hyperpod.yaml", "README.md"
UNVERIFIED = "Not verified on AWS"
NAMESPACE = "hyperpod"
SYSTEM_NODES, DISK_GIB = 2, 500
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,60}")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+){1,2}-\d")
_ZONE = re.compile(r"([a-z]{2}(-[a-z]+){1,2}-\d)[a-z]")


@dataclass(frozen=True, slots=True)
class ClusterWish:
    """What a person asks for. ``zones``: the first is that of the nodes with EFA or a reservation."""

    name: str
    region: str
    groups: Sequence[NodeGroup]
    zones: Sequence[str] = ()
    volumes: Sequence[SharedVolume] = ()
    namespace: str = NAMESPACE

    def check(self) -> None:
        """Raise SpecError for what eksctl or EC2 would refuse later."""
        if not _NAME.fullmatch(self.name):
            raise SpecError(f"the name is {self.name[:80]!r}, expected letters, digits and -, a letter first")
        if not _REGION.fullmatch(self.region):
            raise SpecError(f"--region is {self.region[:40]!r}, expected for example us-west-2")
        if not self.groups:
            raise SpecError("a cluster needs nodes: --nodes TYPE:COUNT, such as --nodes p5.48xlarge:4")
        for zone in self.zones:
            found = _ZONE.fullmatch(zone)
            if found is None or found[1] != self.region:
                raise SpecError(f"--zones has {zone[:40]!r}, expected zones of {self.region}, such as {self.region}a")
        if self.zones and len(set(self.zones)) < 2:
            raise SpecError(
                "--zones has one zone; EKS wants two: the first is that of the nodes, the second can be any"
            )
        if not self.zones and (placed := [group.name for group in self.groups if _in_one_zone(group)]):
            raise SpecError(
                f"{', '.join(placed)} must be in one zone: nodes that talk over EFA, and reservations, are; name it "
                f"and any second one with --zones {self.region}a,{self.region}b"
            )


def _in_one_zone(group: NodeGroup) -> bool:
    return bool(group.devices.efa or group.reservation)


def render(wish: ClusterWish) -> dict[str, str]:
    """The files of the folder by name. Raises SpecError."""
    wish.check()
    subject = rights.subject(wish.namespace)
    ours = own_objects(wish.namespace, subject, remedies=False, groups=wish.groups)
    files = {
        GUIDE: guide(wish),
        CLUSTER: _yaml("the cluster, for eksctl", [cluster_config(wish)]),
        **{f"values/{name}.yaml": _yaml(f"values of the chart {name}", [values]) for name, values in charts(wish)},
        OURS: _yaml("what is ours, for `kubectl apply`; `setup apply` makes the same", ours),
        OPERATOR: _yaml("HyperPod's training operator, for eksctl", [operator_config(wish)]),
    }
    if wish.volumes:
        made = volumes.manifests(wish.volumes, wish.namespace, wish.region)
        files[VOLUMES] = _yaml("shared storage", made)
    return files


def _yaml(what: str, made: Sequence[dict[str, Any]]) -> str:
    return f"# Made by `jupyter hyperpod setup eks`: {what}. {UNVERIFIED}.\n{rights.as_yaml(made)}"


def _config(wish: ClusterWish) -> dict[str, Any]:
    about = {"name": wish.name, "region": wish.region, "version": table("eks")["kubernetes"]}
    return {"apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig", "metadata": about}


def cluster_config(wish: ClusterWish) -> dict[str, Any]:
    """eksctl's description of the cluster."""
    known = table("addons")
    addons: list[dict[str, Any]] = [{"name": name} for name in known["always"]]
    for one in wish.volumes:
        addons.append(
            {"name": known["volumes"][one.kind], **(_bucket_access(one, wish.region) if one.kind == "s3" else {})}
        )
    addons += [{"name": name} for name in known["observability"]]
    system = {
        "name": "system",
        "instanceType": table("eks")["system"],
        **_size(SYSTEM_NODES),
        **_machine(),
        "labels": {"jupyter-hyperpod/group": "system"},
    }
    return {
        **_config(wish),
        **({"availabilityZones": list(wish.zones)} if wish.zones else {}),
        "iam": {"withOIDC": True},
        "addonsConfig": {"autoApplyPodIdentityAssociations": True},
        "addons": addons,
        "managedNodeGroups": [system, *(_node_group(group, wish.zones) for group in wish.groups)],
    }


def _bucket_access(one: SharedVolume, region: str) -> dict[str, Any]:
    namespace, account = volumes.S3_ACCOUNT
    access = {
        "namespace": namespace,
        "serviceAccountName": account,
        "permissionPolicy": volumes.bucket_policy(one.id, region),
    }
    return {"podIdentityAssociations": [access]}


def _size(count: int) -> dict[str, int]:
    return {"minSize": 0, "desiredCapacity": count, "maxSize": count}


def _machine() -> dict[str, Any]:
    return {
        "amiFamily": "AmazonLinux2023",
        "privateNetworking": True,
        "volumeSize": DISK_GIB,
        "volumeEncrypted": True,
        "nodeRepairConfig": {"enabled": True},
    }


def _node_group(group: NodeGroup, zones: Sequence[str]) -> dict[str, Any]:
    labels = {"jupyter-hyperpod/group": group.name}
    labels |= {"nvidia.com/gpu.present": "true"} if group.devices.kind == "nvidia" else {}  # for its device plugin
    made: dict[str, Any] = {
        "name": group.name,
        **({"instanceTypes": [group.type], "spot": True} if group.market == SPOT else {"instanceType": group.type}),
        **_size(group.count),
        **_machine(),
        "labels": labels,
    }
    made |= {"availabilityZones": [zones[0]]} if _in_one_zone(group) else {}
    made |= {"efaEnabled": True} if group.devices.efa else {}
    if group.reservation:
        target = {"capacityReservationID": group.reservation}
        made["capacityReservation"] = {"capacityReservationTarget": target}
    if group.market.startswith(BLOCK):
        made["instanceMarketOptions"] = {"marketType": "capacity-block"}
    return made


def operator_config(wish: ClusterWish) -> dict[str, Any]:
    """The add-ons of HyperPod's training operator, which are for clusters with nodes of SageMaker HyperPod alone."""
    names = table("addons")["operator"]
    wanted = {"autoApplyPodIdentityAssociations": True}
    return {**_config(wish), "addonsConfig": wanted, "addons": [{"name": name} for name in names]}


def charts(wish: ClusterWish) -> Iterator[tuple[str, dict[str, Any]]]:
    """The charts that these nodes need, with their values."""
    if any(group.devices.kind == "nvidia" for group in wish.groups):
        yield "nvidia-device-plugin", {"migStrategy": "none", "gfd": {"enabled": False}}
    if any(group.devices.kind == "neuron" for group in wish.groups):
        yield "neuron-helm-chart", {"npd": {"enabled": False}}
    if with_efa := sorted({group.type for group in wish.groups if group.devices.efa}):
        yield "aws-efa-k8s-device-plugin", {"supportedInstanceLabels": {"values": with_efa}}
    yield "kueue", {"managerConfig": {"controllerManagerConfigYaml": _kueue()}}


def _kueue() -> str:
    """Kueue's own configuration: it counts devices or pods, and leaves processors and memory to the scheduler."""
    return rights.as_yaml(
        [
            {
                "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                "kind": "Configuration",
                "health": {"healthProbeBindAddress": ":8081"},
                "metrics": {"bindAddress": ":8443"},
                "webhook": {"port": 9443},
                "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
                "integrations": {"frameworks": ["batch/job"]},
                "resources": {"excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage"]},
            }
        ]
    )


def _install(name: str, chart: Mapping[str, str]) -> str:
    place = chart.get("oci") or f"{name} --repo {chart['repository']}"
    end = f"--namespace {chart['namespace']} --create-namespace --values values/{name}.yaml"
    own = " --take-ownership" if name == "aws-efa-k8s-device-plugin" else ""  # eksctl has installed an older one
    return f"helm upgrade --install {name} {place} --version {chart['version']} \\\n    {end}{own}"


def guide(wish: ClusterWish) -> str:
    """The commands in their order."""
    known, lines = table("eks"), []
    for group in wish.groups:
        amounts = [f"{count} {name}" for name, count in group.amounts().items()]
        lines.append(f"| {group.type} | {group.count} | {', '.join(amounts) or '–'} | {group.market or 'on demand'} |")
    installs = "\n".join(_install(name, table("charts")[name]) for name, _ in charts(wish))
    shared = f"kubectl apply -f {OURS} -f {VOLUMES}" if wish.volumes else f"kubectl apply -f {OURS}"
    local, _ = queue_names(wish.namespace)
    claims = ",".join(f"{one.claim}:/{one.kind}" for one in wish.volumes)
    efa = any(EFA in group.amounts() for group in wish.groups)
    return _GUIDE.format(
        name=wish.name,
        region=wish.region,
        unverified=UNVERIFIED,
        nodes=plural(sum(group.count for group in wish.groups), "node"),
        rows="\n".join(lines),
        eksctl=known["eksctl"],
        helm=known["helm"],
        kubernetes=known["kubernetes"],
        cluster=CLUSTER,
        installs=installs,
        shared=shared,
        operator=OPERATOR,
        namespace=wish.namespace,
        queue=local,
        claims=claims or "NAME:/PATH",
        efa="\nPods that use EFA ask for it: `--kubernetes resources=vpc.amazonaws.com/efa=N,…`.\n" if efa else "",
    )


_GUIDE = """\
# The cluster {name} in {region}

**{unverified}**: these files fit eksctl's schema and those of Kubernetes and Kueue; no cluster was ever made of them.
The commands make {nodes} and more that cost money until step 6.

| type | nodes | each offers | bought |
|---|---|---|---|
{rows}

You need eksctl {eksctl}, helm {helm} or newer, kubectl, and credentials of AWS. Kubernetes is {kubernetes}; EKS chooses
the versions of its add-ons by that (`eksctl get addons --cluster {name} --region {region}` shows them).

1. The cluster, its nodes and add-ons: 20 minutes and more.

```bash
eksctl create cluster -f {cluster} --install-nvidia-plugin=false --install-neuron-plugin=false
```

2. Device plugins and Kueue.

```bash
{installs}
```

3. What is ours: namespace, roles, priority classes and queues.

```bash
{shared}
```

eksctl makes a network (VPC) for the cluster. File systems that are there already have to be in it, or in one that is
connected to it, and have to let its nodes in.

4. See what is missing.

```bash
jupyter hyperpod setup check --namespace {namespace}
```

5. A job.

```bash
jupyter hyperpod submit train.py --backend kubernetes --nodes 2 --kubernetes image=IMAGE \\
    --kubernetes claim={claims} \\
    --kubernetes namespace={namespace} --kubernetes queue={queue} \\
    --kubernetes priority-class=hyperpod-base --kubernetes elastic-priority-class=hyperpod-elastic
```
{efa}
6. Remove all of it. File systems and buckets stay.

```bash
eksctl delete cluster -f {cluster} --disable-nodegroup-eviction --wait
```

HyperPod's training operator is for clusters whose nodes SageMaker HyperPod manages:
`eksctl create addon -f {operator}`. Jobs use it where they have `--kubernetes operator=hyperpod`.
"""
