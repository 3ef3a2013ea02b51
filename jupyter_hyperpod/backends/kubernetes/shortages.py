"""Judges before a submission whether a cluster lets a job run: rights, quotas, limits, classes, claims, token. Pure.

What a cluster did not let us read is None and is no shortage: Kubernetes itself judges then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from ...core.units import few, format_duration, plural
from .rights import Right
from .workloads.workload import OPERATED, OPERATOR_GROUP

OLDEST = (1, 20)
COMPUTE = ("cpu", "memory")
TOKEN_S = 3600.0
ENFORCED = "pod-security.kubernetes.io/enforce"
MANY = ("ReadWriteMany", "ReadOnlyMany")
AMOUNT = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?")
SCALES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
ROLE = "ask who runs the cluster for the Role that `jupyter hyperpod setup role` prints"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a cluster lacks for a job. ``fatal``: the job could never run; otherwise it runs with less, or later."""

    name: str
    sentence: str
    remedy: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """What a job asks of a cluster; ``nodes`` is the number that it needs to begin."""

    namespace: str
    nodes: int = 1
    resources: Mapping[str, str] = field(default_factory=dict)  # per node
    priority_class: str = ""
    elastic_priority_class: str = ""
    claims: tuple[str, ...] = ()
    head_claim: str = ""  # which the head alone uses
    queue: str = ""
    operator: bool = False  # HyperPod's training operator makes its pods
    head: bool = False  # its head is a pod, too
    node_directories: bool = False  # pods mount directories of the nodes
    root: bool = False  # pods run as root, or as the user of their image, who may be root


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What was found out. None: it could not be read. An empty object: there is none of that name."""

    version: str = ""
    rights: Sequence[tuple[Right, bool]] = ()
    namespace: Mapping[str, Any] | None = None
    quotas: Sequence[Mapping[str, Any]] | None = None
    limits: Sequence[Mapping[str, Any]] | None = None
    priority_classes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    claims: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    queue: Mapping[str, Any] | None = None
    groups: Mapping[str, str] | None = None  # group of the API -> its version
    nodes: Sequence[Mapping[str, Any]] | None = None
    drivers: Sequence[Mapping[str, Any]] | None = None  # of storage
    own_classes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    token_left_s: float | None = None
    renewable: bool = True
    warning: str = ""


def shortages(wanted: JobNeeds, facts: ClusterFacts) -> list[Shortage]:
    """Everything that a cluster lacks, each with its remedy."""
    judges = (_version, _namespace, _security, _rights, _token, _quotas, _limits, _classes, _claims, _queue, _operator)
    return [shortage for judge in judges for shortage in judge(wanted, facts)]


def amount(text: str) -> Decimal | None:
    """A quantity of Kubernetes such as ``500m``, ``1.5Gi`` or ``2e3`` as a number; None for what is none."""
    found = AMOUNT.fullmatch(text)
    if found is None:
        return None
    digits, power, unit = found.groups()
    try:
        number = Decimal(f"{digits}{power or ''}")
        if unit and unit.endswith("i"):
            return number * Decimal(1024) ** ("KMGTPE".index(unit[0]) + 1)
        return number.scaleb(SCALES[unit or ""])
    except InvalidOperation:
        return None


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor number of ``v1.29.3-eks-036c24b``."""
    found = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})", text)
    return (int(found[1]), int(found[2])) if found else None


def _version(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    found = parse_version(facts.version)
    if found is not None and found < OLDEST:
        need = ".".join(map(str, OLDEST))
        yield Shortage(
            "version", f"the cluster runs Kubernetes {facts.version}, {need} is the oldest that works", "renew it"
        )


def _namespace(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    name = wanted.namespace
    if facts.namespace is not None and not facts.namespace:
        yield Shortage("namespace", f"there is no namespace {name}", "name another: --kubernetes namespace=NAME")
    elif ((facts.namespace or {}).get("status") or {}).get("phase") == "Terminating":
        yield Shortage(
            "namespace", f"the namespace {name} is being deleted", "name another: --kubernetes namespace=NAME"
        )


def _security(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    """What the Pod Security Standard of the namespace would refuse: a Job is made, and never gets a pod."""
    level = ((facts.namespace or {}).get("metadata") or {}).get("labels", {}).get(ENFORCED, "privileged")
    which = f"the namespace {wanted.namespace} ({ENFORCED}={level}) admits no pods"
    if level in ("baseline", "restricted") and wanted.node_directories:
        remedy = "use a volume claim: --kubernetes claim=NAME:/PATH"
        yield Shortage("pod security", f"{which} with directories of the nodes (--kubernetes host-path=…)", remedy)
    if level == "restricted" and wanted.root:
        remedy = "name another user: --kubernetes user=1000, with head=pod unless you submit as that user"
        yield Shortage("pod security", f"{which} that may run as root, as those of this job would", remedy)


def _rights(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    for right, allowed in facts.rights:
        if not allowed:
            where = "in the cluster" if right.cluster else f"in the namespace {wanted.namespace}"
            said = f"you may not {right.what} {where}, which {right.purpose} needs"
            yield Shortage(right.what, said, ROLE, fatal=right.needed)


def _token(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    left_s = facts.token_left_s
    if facts.warning:
        yield Shortage("certificate", facts.warning, "see certificate-authority-data", fatal=False)
    if left_s is None or facts.renewable or left_s > TOKEN_S:
        return
    ends = "has ended" if left_s <= 0 else f"ends in {format_duration(left_s)}"
    remedy = "log in again, or use a kubeconfig whose exec plugin renews it"
    yield Shortage(
        "token", f"the token {ends} and nothing renews it, so nobody would look after the job then", remedy, left_s <= 0
    )


def _quotas(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    defaults = _defaults(facts.limits or ())
    for quota in facts.quotas or ():
        name, status = _name(quota), quota.get("status") or {}
        hard, used = (status.get(key) or {} for key in ("hard", "used"))
        for what, limit in sorted(hard.items()):
            if not _counts(quota, what, wanted, defaults):
                continue
            each = _each(what, wanted.resources, defaults)
            if each is None:
                if _must_be_given(what):
                    resource = what.rpartition(".")[2]
                    said = (
                        f"the quota {name} counts {what}, and the job asks for no {resource}: its pods would be refused"
                    )
                    yield Shortage(f"quota {name}", said, f"add {resource}=AMOUNT to --kubernetes resources=…")
                continue
            yield from _fits(name, what, each * wanted.nodes, str(limit), str(used.get(what, "0")), wanted.nodes)


def _fits(name: str, what: str, need: Decimal, limit: str, used: str, nodes: int) -> Iterator[Shortage]:
    most, taken = amount(limit), amount(used) or Decimal(0)
    if most is None or need <= most - taken:
        return
    asked = f"{plural(nodes, 'node')} {'needs' if nodes == 1 else 'need'} {_shown(need, what)} of {what}"
    if need > most:
        remedy = "ask for less, for fewer nodes, or for a larger quota"
        yield Shortage(f"quota {name}", f"{asked}, and the quota {name} is {limit}", remedy)
    else:
        free = _shown(max(most - taken, Decimal(0)), what)
        said = f"{asked}, and {free} of the quota {name} is free ({used} of {limit} is used)"
        yield Shortage(f"quota {name}", said, "the job waits until others have given theirs back", fatal=False)


def _each(what: str, resources: Mapping[str, str], defaults: Mapping[str, Mapping[str, str]]) -> Decimal | None:
    """What one node of a job takes of a quota; None where it names no amount."""
    if what == "pods" or what.startswith("count/"):
        return Decimal(1)
    part, _, resource = what.partition(".")
    if part not in ("requests", "limits"):
        part, resource = "requests", what
    given = resources.get(resource) or defaults[part].get(resource)
    return None if given is None else amount(given)


def _must_be_given(what: str) -> bool:
    part, _, resource = what.partition(".")
    return (resource if part in ("requests", "limits") else what) in COMPUTE


def _counts(quota: Mapping[str, Any], what: str, wanted: JobNeeds, defaults: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a quota counts a job's pods, by its scopes; and whether this is something that a job takes."""
    made = f"count/{OPERATED.resource}" if wanted.operator else "count/jobs.batch"
    if what.startswith("count/") and what not in ("count/pods", made):
        return False
    spec = quota.get("spec") or {}
    best_effort = not (
        set(COMPUTE) & (wanted.resources.keys() | defaults["requests"].keys() | defaults["limits"].keys())
    )
    for scope in spec.get("scopes") or []:
        if {"BestEffort": not best_effort, "NotBestEffort": best_effort}.get(scope, scope != "NotTerminating"):
            return False
    for one in (spec.get("scopeSelector") or {}).get("matchExpressions") or []:
        scope, names = one.get("scopeName"), one.get("values") or []
        if scope != "PriorityClass":
            if {"BestEffort": not best_effort, "NotBestEffort": best_effort}.get(scope, scope != "NotTerminating"):
                return False
            continue
        mine = wanted.priority_class
        if not {
            "In": mine in names, "NotIn": mine not in names, "Exists": bool(mine), "DoesNotExist": not mine
        }.get(str(one.get("operator")), False):  # fmt: skip
            return False
    return True


def _defaults(limits: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """What a container gets that names no amount: part -> resource -> amount."""
    found: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for one in _of_containers(limits):
        for resource, value in {**(one.get("max") or {}), **(one.get("default") or {})}.items():
            found["limits"].setdefault(resource, str(value))
        for resource, value in {**found["limits"], **(one.get("defaultRequest") or {})}.items():
            found["requests"].setdefault(resource, str(value))
    return found


def _of_containers(limits: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for each in limits:
        for one in (each.get("spec") or {}).get("limits") or []:
            if one.get("type") in ("Container", "Pod"):  # a node has one pod with one container
                yield one


def _limits(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    for one in _of_containers(facts.limits or ()):
        for resource, value in wanted.resources.items():
            asked = amount(value)
            for bound, beyond in (("max", "at most"), ("min", "at least")):
                limit = (one.get(bound) or {}).get(resource)
                allowed = None if limit is None else amount(str(limit))
                if asked is None or allowed is None or (asked <= allowed if bound == "max" else asked >= allowed):
                    continue
                where = f"the namespace {wanted.namespace} allows {beyond} {limit}"
                said = f"a node asks for {value} of {resource}, and {where}"
                yield Shortage("limits", said, f"ask for {limit}: --kubernetes resources={resource}={limit}")


def _classes(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    for option, name in (
        ("priority-class", wanted.priority_class), ("elastic-priority-class", wanted.elastic_priority_class)
    ):  # fmt: skip
        found = facts.priority_classes.get(name) if name else None
        if found is not None and not found:
            remedy = f"see `kubectl get priorityclasses`, and name one of them: --kubernetes {option}=NAME"
            yield Shortage(f"priority class {name}", f"there is no priority class {name}", remedy)
    base, elastic = (facts.priority_classes.get(n) for n in (wanted.priority_class, wanted.elastic_priority_class))
    if base and elastic and int(elastic.get("value", 0)) > int(base.get("value", 0)):
        said = f"elastic nodes have a higher priority ({elastic['value']}) than the others ({base['value']})"
        yield Shortage("priority classes", said, "exchange the two classes", fatal=False)


def _claims(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    for name in filter(None, dict.fromkeys((*wanted.claims, wanted.head_claim))):
        claim = facts.claims.get(name)
        if claim is None:
            continue
        phase, modes = (claim.get("status") or {}).get("phase"), (claim.get("spec") or {}).get("accessModes") or []
        if not claim:
            where = f"in the namespace {wanted.namespace}"
            yield Shortage(f"claim {name}", f"there is no volume claim {name} {where}", "see `kubectl get pvc`")
        elif phase == "Lost":
            yield Shortage(f"claim {name}", f"the volume of the claim {name} is lost", "ask who runs the cluster")
        elif name in wanted.claims and wanted.nodes > 1 and not set(modes) & set(MANY):
            said = f"the claim {name} can be used by one node at a time ({few(modes)}), and the job has {wanted.nodes}"
            yield Shortage(f"claim {name}", said, "use a claim with ReadWriteMany, on a file system that nodes share")


def _queue(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    if not wanted.queue:
        return
    if facts.groups is not None and "kueue.x-k8s.io" not in facts.groups:
        said = f"the job names the queue {wanted.queue}, and Kueue, which would admit it, is not installed"
        yield Shortage("queue", said, "install Kueue, or leave --kubernetes queue=… out")
    elif facts.queue is not None and not facts.queue:
        said = f"there is no queue {wanted.queue} in the namespace {wanted.namespace}"
        yield Shortage("queue", said, "see `kubectl get localqueues`")


def _operator(wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Shortage]:
    if wanted.operator and facts.groups is not None and OPERATOR_GROUP not in facts.groups:
        said = "the job asks for HyperPod's training operator, and the cluster has none (no HyperPodPyTorchJob)"
        yield Shortage("operator", said, "leave --kubernetes operator=hyperpod out: then its nodes are plain Jobs")


def _name(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def _shown(number: Decimal, what: str) -> str:
    """A number as people write quantities: 96Gi of memory, 1500m or 8 of cpu."""
    if number == number.to_integral_value():
        whole = int(number)
        for power, unit in ((3, "Gi"), (2, "Mi"), (1, "Ki")) if what.endswith(("memory", "storage")) else ():
            if whole and whole % 1024**power == 0:
                return f"{whole // 1024**power}{unit}"
        return str(whole)
    return f"{(number * 1000).to_integral_value()}m"
