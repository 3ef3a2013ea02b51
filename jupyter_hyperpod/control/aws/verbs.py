"""list-cluster, describe-cluster, set-cluster-context and get-cluster-context: what they ask, and what they answer."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...backends.kubernetes import kubeconfig
from ...core.errors import ClusterError, NotFound, SpecError
from ...core.units import plural
from ..text_tables import Answer, Table, clean
from .context_options import AWS, KUBECONFIG

if TYPE_CHECKING:
    from .clusters import ClusterNode, HyperpodCluster
    from .kubeconfig_entry import EksCluster

Say = Callable[[str], object]
EKS_ARN = re.compile(r"arn:aws[a-z-]*:eks:([a-z0-9-]+):[0-9]{12}:cluster/([A-Za-z0-9_-]+)")
GOOD, BAD = ("InService", "Running"), ("Failed", "Failure", "Degraded", "NotFound")


def run_list(options: argparse.Namespace, say: Say) -> Answer:
    """List the clusters of the kubeconfig, or those of AWS. Raises HyperpodError."""
    of_aws = {"--region": options.region, "--clusters": options.clusters}
    given = [option for option, value in of_aws.items() if value]
    if (options.provider or (AWS if given else KUBECONFIG)) == KUBECONFIG:
        if given:
            raise SpecError(f"{given[0]} belongs to --provider {AWS}")
        return _contexts()
    from . import clusters
    from .connection import Aws

    names = [name for name in (options.clusters or "").split(",") if name.strip()]
    aws = Aws(options.region or "")
    say(f"asking AWS for clusters in {aws.region}")
    found = clusters.clusters(aws, [name.strip() for name in names], say)
    rows = [_row(one) for one in found]
    empty = f"no HyperPod cluster in {aws.region} for these credentials; --region asks in another one"
    headers = ("NAME", "STATUS", "ORCHESTRATOR", "INSTANCES (CURRENT/TARGET)", "MESSAGE")
    return Answer([asdict(one) for one in found], Table(headers, rows, empty))


def _row(one: HyperpodCluster) -> list[str | tuple[str, str]]:
    groups = ", ".join(f"{g.name} {g.current}/{g.target} {g.instance_type}" for g in one.groups)
    return [one.name, (one.status, _tone(one.status)), one.orchestrator or "?", groups, one.message]


def _tone(status: str) -> str:
    return "good" if status in GOOD else "bad" if status in BAD else "warn"


def run_describe(options: argparse.Namespace, say: Say) -> tuple[Answer, list[Table]]:
    """Describe a HyperPod cluster: what is known, and tables of its groups and nodes. Raises HyperpodError."""
    from . import clusters
    from .connection import Aws

    aws = Aws(options.region or "")
    say(f"asking AWS about {options.cluster_name}")
    found = clusters.cluster(aws, options.cluster_name)
    nodes, note = clusters.placed(aws, options.cluster_name, clusters.nodes(aws, options.cluster_name), say)
    lines = [f"{found.name}: {found.status}, orchestrated by {found.orchestrator}, in {found.region}, {found.arn}"]
    lines += [f"message: {found.message}"] if found.message else []
    if found.eks:
        lines.append(f"EKS cluster: {found.eks}")
        lines.append(
            f"connect: jupyter hyperpod set-cluster-context --cluster-name {found.name} --region {found.region}"
        )
    else:
        lines.append(f"login: {clusters.login_command(found, nodes)}")
    lines += [note] if note else []
    record = {**asdict(found), "nodes": [asdict(node) for node in nodes], "note": note}
    return Answer(record, lines=[clean(line) for line in lines]), [_groups(found), _nodes(nodes)]


def _groups(found: HyperpodCluster) -> Table:
    rows: list[list[str | tuple[str, str]]] = [
        [g.name, g.instance_type, str(g.current), str(g.target), (g.status, _tone(g.status))] for g in found.groups
    ]
    return Table(("GROUP", "TYPE", ">CURRENT", ">TARGET", "STATUS"), rows, "no instance groups")


def _nodes(nodes: list[ClusterNode]) -> Table:
    rows: list[list[str | tuple[str, str]]] = [
        [n.id, n.group, n.instance_type, (n.status, _tone(n.status)), n.zone, n.host, n.message] for n in nodes
    ]
    return Table(("NODE", "GROUP", "TYPE", "STATUS", "ZONE", "HOST", "MESSAGE"), rows, "no nodes")


def run_set(options: argparse.Namespace, say: Say) -> Answer:
    """Make a HyperPod cluster the current context. Raises HyperpodError, also for a cluster of Slurm."""
    from . import clusters, kubeconfig_entry
    from .connection import Aws

    if options.namespace and not kubeconfig.NAMESPACE.fullmatch(options.namespace):
        raise SpecError(f"--namespace is {options.namespace[:80]!r}; expected small letters, digits and -")
    aws = Aws(options.region or "")
    say(f"asking AWS about {options.cluster_name}")
    found = clusters.cluster(aws, options.cluster_name)
    if not found.eks:
        command = clusters.login_command(found, clusters.nodes(aws, options.cluster_name))
        raise ClusterError(
            f"{found.name} is orchestrated by Slurm and has no Kubernetes context: reach its login node with "
            f"`{command}` (needs the Session Manager plugin), and run Jupyter and `--backend slurm` there"
        )
    eks, note = _eks_cluster(aws, found)
    path = kubeconfig.kubeconfig_files(None, os.environ)[0]
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or ""
    name, changed = kubeconfig_entry.connect(path, eks, options.namespace or "", profile)
    access = kubeconfig.read_access()
    record = {
        "cluster": found.name,
        "region": found.region,
        "context": name,
        "kubeconfig": str(path),
        "server": access.server,
        "namespace": access.namespace,
        "changed": changed,
        "note": note,
    }
    done = "is now the current context" if changed else "is the current context already"
    lines = [f"{name} {done} of {path}: {access.server}, namespace {access.namespace}", *([note] if note else [])]
    if shutil.which("aws") is None:
        lines.append(f"tokens come from the program `aws`, which was not found: {kubeconfig_entry.HINT}")
    lines.append("`jupyter hyperpod setup check` says whether jobs can run there")
    return Answer(record, lines=[clean(line) for line in lines])


def _eks_cluster(aws: Any, found: HyperpodCluster) -> tuple[EksCluster, str]:
    """How the EKS cluster of a HyperPod cluster is reached, and what a person should know of that."""
    from .connection import asking
    from .kubeconfig_entry import EksCluster

    named = EKS_ARN.fullmatch(found.eks)
    if named is None:
        raise ClusterError(f"AWS names {found.eks[:200]!r} as the EKS cluster of {found.name}, which is no ARN of one")
    region, name = named.groups()
    try:
        with asking("eks:DescribeCluster", region):
            told = aws.eks(region).describe_cluster(name=name)["cluster"]
    except NotFound:
        raise NotFound(
            f"the EKS cluster {name}, which orchestrates {found.name}, is not there: was it deleted?"
        ) from None
    server = str(told.get("endpoint") or "").rstrip("/")
    authority = str((told.get("certificateAuthority") or {}).get("data") or "")
    if not server or not authority:
        status = told.get("status") or "of no status"
        raise ClusterError(f"the EKS cluster {name} is {status} and has no address yet; repeat this when it is ACTIVE")
    public = (told.get("resourcesVpcConfig") or {}).get("endpointPublicAccess")
    note = f"the address of {name} is private: it answers within its VPC only" if public is False else ""
    return EksCluster(found.eks, name, region, server, authority), note


def run_get() -> Answer:
    """Show the current context. Raises ClusterError where there is none."""
    access = kubeconfig.read_access()
    record = _context_record(access.context, access)
    return Answer(record, lines=[clean(f"{access.context or access.source}: {access.server}, {_where(access)}")])


def _where(access: kubeconfig.Access) -> str:
    named = EKS_ARN.fullmatch(access.context)
    of_eks = f", EKS cluster {named[2]} in {named[1]}" if named else ""
    return f"namespace {access.namespace}{of_eks}"


def _context_record(name: str, access: kubeconfig.Access) -> dict[str, Any]:
    return {
        "context": name,
        "server": access.server,
        "namespace": access.namespace,
        "kubeconfig": [str(path) for path in access.files],
    }


def _contexts() -> Answer:
    """The contexts of the kubeconfig, the current one marked; one that cannot be used is told of with the reason."""
    current, names = kubeconfig.known_contexts()
    rows: list[list[str | tuple[str, str]]] = []
    records = []
    for name in names:
        mark = "*" if name == current else ""
        try:
            access = kubeconfig.read_access(name)
        except ClusterError as error:
            rows.append([mark, name, "", "", (str(error), "bad")])
            records.append({"context": name, "current": name == current, "message": str(error)})
            continue
        rows.append([mark, name, access.server, access.namespace, ""])
        records.append({**_context_record(name, access), "current": name == current})
    files = kubeconfig.kubeconfig_files(None, os.environ)
    empty = f"no context in {', '.join(map(str, files))}; `list-cluster --provider aws` asks AWS"
    table = Table(("", "CONTEXT", "SERVER", "NAMESPACE", "MESSAGE"), rows, empty)
    return Answer(records, table, [] if not rows or current else [f"none of {plural(len(rows), 'context')} is current"])
