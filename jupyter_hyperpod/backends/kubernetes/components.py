"""What a cluster has beside Kubernetes itself, from queues to devices: present, missing or too old. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.units import few, plural
from . import parse
from .shortages import amount

PRESENT, MISSING, OLD = "present", "missing", "too old"
OWN_CLASSES = ("hyperpod-base", "hyperpod-elastic")  # priority classes that `setup apply` makes
DRIVERS = {
    "fsx.csi.aws.com": ("FSx for Lustre", "aws-fsx-csi-driver"),
    "efs.csi.aws.com": ("EFS", "aws-efs-csi-driver"),
    "s3.csi.aws.com": ("S3", "aws-mountpoint-s3-csi-driver"),
}
DEVICES = ("nvidia.com/gpu", "aws.amazon.com/neuron", "vpc.amazonaws.com/efa")


@dataclass(frozen=True, slots=True)
class Component:
    """One of them. What is missing is a fault only where a job asks for it, as ``sentence`` says."""

    name: str
    state: str
    sentence: str
    remedy: str = ""


# name, group of the API, versions that will do, what it is for, remedy
EXTENSIONS = (
    (
        "Kueue",
        "kueue.x-k8s.io",
        ("v1beta1", "v1beta2", "v1"),
        "--kubernetes queue=… needs it",
        "install a release of Kueue that serves v1beta1: https://kueue.sigs.k8s.io",
    ),
    (
        "HyperPod training operator",
        "sagemaker.amazonaws.com",
        ("v1",),
        "--kubernetes operator=hyperpod needs it, other jobs run as plain Jobs",
        "nothing has to be done",
    ),
    (
        "JobSet",
        "jobset.x-k8s.io",
        ("v1alpha2", "v1beta1", "v1"),
        "not used: jobs run as plain Jobs",
        "nothing has to be done",
    ),
    (
        "metrics server",
        "metrics.k8s.io",
        ("v1beta1", "v1"),
        "`kubectl top` needs it, jobs do not",
        "install the add-on metrics-server, or https://github.com/kubernetes-sigs/metrics-server",
    ),
)


def components(
    groups: Mapping[str, str] | None,
    nodes: Sequence[Mapping[str, Any]] | None,
    drivers: Sequence[Mapping[str, Any]] | None = None,
    classes: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> Iterator[Component]:
    """Judge the groups of the API with their versions, nodes, drivers of storage, priority classes.

    None: they may not be read, and nothing is said of them.
    """
    for name, group, versions, purpose, remedy in EXTENSIONS if groups is not None else ():
        version = (groups or {}).get(group)
        if version is None:
            yield Component(name, MISSING, f"not installed ({purpose})", remedy)
        elif version not in versions:
            yield Component(name, OLD, f"it serves {version}, expected {' or '.join(versions)}", remedy)
        else:
            yield Component(name, PRESENT, f"{group}/{version} ({purpose})")
    for device in DEVICES if nodes is not None else ():
        counts = {str((node.get("metadata") or {}).get("name")): _allocatable(node, device) for node in nodes or ()}
        having = {name: count for name, count in counts.items() if count}
        if having:
            span = few(sorted(set(having.values())), 8)
            yield Component(device, PRESENT, f"{span} on each of {plural(len(having), 'node')}")
        else:
            remedy = "where nodes have such devices, install their device plugin"
            yield Component(device, MISSING, "no node offers any: a job cannot ask for it", remedy)
    yield from _storage(drivers)
    yield from _agents(nodes)
    for name in OWN_CLASSES:
        if (found := (classes or {}).get(name)) is not None:
            state, said = (PRESENT, f"priority {found.get('value')}") if found else (MISSING, "not there")
            remedy = "" if found else "`jupyter hyperpod setup apply` makes it, where you may"
            yield Component(name, state, f"{said} (a priority class for jobs that name it)", remedy)


def _agents(nodes: Sequence[Mapping[str, Any]] | None) -> Iterator[Component]:
    """Nodes whose health agent has shown itself there."""
    if nodes is None:
        return
    records = [record for node in nodes if (record := parse.agent_health(node)) is not None]
    out = sum(record.fences for record in records)
    if records:
        broken = f", {plural(out, 'node')} out of service" if out else ""
        yield Component("health agents", PRESENT, f"on {len(records)} of {plural(len(nodes), 'node')}{broken}")
    else:
        remedy = "`jupyter hyperpod setup apply --health IMAGE` installs them, where you may"
        yield Component("health agents", MISSING, "on no node: a job leaves a faulty node only when it breaks", remedy)


def _storage(drivers: Sequence[Mapping[str, Any]] | None) -> Iterator[Component]:
    present = {str((driver.get("metadata") or {}).get("name")) for driver in drivers or ()}
    for name, (storage, addon) in DRIVERS.items() if drivers is not None else ():
        if name in present:
            yield Component(name, PRESENT, f"claims of {storage} can be mounted")
        else:
            remedy = f"where jobs are to use {storage}, install EKS's add-on {addon}"
            yield Component(name, MISSING, f"claims of {storage} cannot be mounted", remedy)


def _allocatable(node: Mapping[str, Any], device: str) -> int:
    found = amount(str(((node.get("status") or {}).get("allocatable") or {}).get(device, "0")))
    return int(found) if found is not None else 0
