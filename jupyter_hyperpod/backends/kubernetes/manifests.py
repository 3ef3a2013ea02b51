"""Renders one node of a LaunchPlan as an object with one pod (`workloads.workload`), as data that becomes JSON. Pure.

Nothing of a person's text is read by a shell: the shell's own words are the constant `START`, and everything else is an
argument or a variable. Kubernetes itself reads ``$(NAME)`` in arguments and variables, so dollars are doubled.
Fields: batch/v1 Job and v1 Pod, those that Kubernetes has had since 1.20.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ...core.backend_options import (
    FS_GROUP,
    HEAD_CLAIM,
    OWN_STORE,
    POD_ADDRESS,
    LabelRule,
    SharedDirectory,
    Toleration,
    is_apart,
    label_rules,
    names,
    pairs,
    pod_user,
    shared_directories,
    tolerations,
)
from ...core.spec import LaunchPlan
from ..types import ELASTIC
from .workloads.workload import KEPT_S, workload

PREFIX = "jupyter-hyperpod"
JOB, PART, BATCH, HEAD = (f"{PREFIX}/{word}" for word in ("job", "part", "batch", "head"))
MANAGED = {"app.kubernetes.io/managed-by": PREFIX}
SELECTOR = ",".join(f"{name}={value}" for name, value in MANAGED.items())
QUEUE, QUEUE_PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
# says who it is, opens the log and is replaced by the program; a place that is not there is no reason not to begin
PROCESS = "/dev/shm/hyperpod.pid"
START = f'echo "$$" >{PROCESS}; exec >>"$1" 2>&1; cd "$2" || cd /; shift 2; exec "$@"'
START_APART = f'echo "$$" >{PROCESS}; cd /; exec "$@"'  # the log and perhaps the folder are in a store that comes later
SIGNAL = f'read -r process <{PROCESS} && kill -"$0" "$process"'
LEAVES_S = 30  # time to leave for a pod that is preempted or evicted
CONTAINER = "main"
# with a user who is not root, what the "restricted" Pod Security Standard wants
LEAST = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
POD_START = "jupyter_hyperpod.storage.apart.pod_start"
HEAD_TRIES, HEAD_LOST_S = 1000, 10  # pods that may fail; seconds until a lost node gives its pod up


@dataclass(frozen=True, slots=True)
class PodUser:
    """As whom pods run: like this process, so that they may use its files. ``home`` is where a program finds "~"."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/tmp"


def element_name(batch: int, index: int) -> str:
    """The name of a batch's element, and of its Job."""
    return f"hp-{batch}-{index}"


def labels(job_id: str, part: str, batch: int) -> dict[str, str]:
    """What a Job and its pod are found by."""
    return {**MANAGED, JOB: job_id, PART: part, BATCH: str(batch)}


def missing_directories(options: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    """Which of these absolute paths are in no directory that pods share with this machine."""
    shared = shared_directories(options)
    shared += [SharedDirectory(OWN_STORE)] if is_apart(options) else []  # each pod makes what belongs there
    return [path for path in wanted if _holding(path, shared) is None]


def job(
    plan: LaunchPlan,
    options: Mapping[str, str],
    part: str,
    batch: int,
    index: int,
    person: PodUser,
    avoid: Sequence[str] = (),
) -> dict[str, Any]:
    """The manifest of one element."""
    name, found = element_name(batch, index), labels(plan.job_id, part, batch)
    pod = _pod(plan, options, part, name, person, avoid)
    return workload(options).manifest(name, {**found, **_queued(options, part)}, found, pod)


def _queued(options: Mapping[str, str], part: str) -> dict[str, str]:
    """The labels by which Kueue admits a node, each where it is given."""
    queue, priority = options.get("queue", ""), _of_part(options, "queue-priority", part)
    return ({QUEUE: queue} if queue else {}) | ({QUEUE_PRIORITY: priority} if priority else {})


def _of_part(options: Mapping[str, str], name: str, part: str) -> str:
    """An option that elastic nodes may have otherwise."""
    return (options.get(f"elastic-{name}", "") if part == ELASTIC else "") or options.get(name, "")


def head_name(job_id: str) -> str:
    """The name of the Job of a job's head."""
    return f"hp-head-{hashlib.sha256(job_id.encode()).hexdigest()[:16]}"


def head_job(job_id: str, options: Mapping[str, str], program: Sequence[str], account: str) -> dict[str, Any]:
    """The manifest of a job's head in a pod of its own.

    It has another label than the nodes, beside which it may run, and the rights of an account, because it requests
    them. It runs as the user of the image, whom the submitter's machine need not know, unless ``user`` names another.
    """
    found = {**MANAGED, HEAD: job_id}
    shared = shared_directories(options)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options["image"],
        "command": [literal(word) for word in program],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}, *_own_address(options)],
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the pod's status has its last words
        "securityContext": LEAST,
        "volumeMounts": _mounts(shared, is_apart(options)),
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "shareProcessNamespace": True,  # somebody has to reap what the supervisor's processes leave
        "serviceAccountName": account,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 2,  # it is lost as a host is: another one takes over
        "containers": [container],
        "volumes": [*_volumes(shared), *_own_store(options, options.get(HEAD_CLAIM, ""))],
    }
    person = pod_user(options)
    if person is not None:
        container["env"].append({"name": "HOME", "value": "/tmp"})  # an image need not know this user
    pod["securityContext"] = _security(options, *(person or (None, None)))
    pod |= _placed(options, options.get("priority-class", ""))
    if terms := _node_affinity(options):
        pod["affinity"] = {"nodeAffinity": terms}
    pod["tolerations"] = [_leaves_after("not-ready"), _leaves_after("unreachable"), *pod.get("tolerations", [])]
    spec = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": HEAD_TRIES,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": {"labels": found}, "spec": pod},
    }
    about = {"name": head_name(job_id), "labels": found}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def _leaves_after(what: str) -> dict[str, Any]:
    """How soon the pod is given up where its node is lost."""
    key = f"node.kubernetes.io/{what}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": HEAD_LOST_S}


def signal_command(number: int) -> list[str]:
    """What sends a signal to the program, run in its container."""
    return ["/bin/sh", "-c", SIGNAL, str(number)]


def _pod(
    plan: LaunchPlan, options: Mapping[str, str], part: str, name: str, person: PodUser, avoid: Sequence[str]
) -> dict[str, Any]:
    shared = shared_directories(options)
    security = _security(options, person.uid, person.gid)
    security |= {"supplementalGroups": list(person.groups)} if person.groups else {}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "shareProcessNamespace": True,  # the program is not process 1, which nothing within could end or stop
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": LEAVES_S,
        "securityContext": security,
        "affinity": _affinity(plan.job_id, options, avoid),
        "containers": [_container(plan, options, name, person, shared)],
        "volumes": [*_volumes(shared), *_own_store(options)],
    }
    return pod | _placed(options, _of_part(options, "priority-class", part))


def _security(options: Mapping[str, str], uid: int | None, gid: int | None) -> dict[str, Any]:
    """As whom a pod runs; None is the user of the image, who may be root."""
    found: dict[str, Any] = {} if uid is None else {"runAsUser": uid, "runAsGroup": gid}
    found |= {"runAsNonRoot": True} if uid else {}
    found |= {"fsGroup": int(options[FS_GROUP])} if FS_GROUP in options else {}
    return found | SECCOMP


def _placed(options: Mapping[str, str], priority: str) -> dict[str, Any]:
    """What a pod has of a job's options beside its container, each where it is given."""
    found: dict[str, Any] = {"priorityClassName": priority} if priority else {}
    found |= {"nodeSelector": pairs(options["selector"])} if "selector" in options else {}
    if accepted := [_toleration(one) for one in tolerations(options.get("tolerations", ""))]:
        found["tolerations"] = accepted
    if secrets := names(options.get("pull-secrets", "")):
        found["imagePullSecrets"] = [{"name": name} for name in secrets]
    return found


def _toleration(one: Toleration) -> dict[str, Any]:
    how = {"operator": "Exists"} if one.value is None else {"operator": "Equal", "value": one.value}
    return {"key": one.key, **how, **({"effect": one.effect} if one.effect else {})}


def _container(
    plan: LaunchPlan, options: Mapping[str, str], name: str, person: PodUser, shared: Sequence[SharedDirectory]
) -> dict[str, Any]:
    log = f"{plan.log_directory}/{name}.log"
    words = [plan.python, "-m", plan.module, *plan.arguments]
    if is_apart(options):
        beside = ["--log", log, "--process", PROCESS, "--folder", plan.working_directory]
        program = workload(options).program([plan.python, "-m", POD_START, *beside, "--", *words])
        words = ["/bin/sh", "-c", START_APART, "start", *program]
    else:
        words = ["/bin/sh", "-c", START, "start", log, plan.working_directory, *workload(options).program(words)]
    values = {
        "HOME": person.home,
        **plan.env,
        "HYPERPOD_BIND": "auto",
        "HYPERPOD_SOCKETS_ONLY": "1",
        "HYPERPOD_SPARE": "",
    }
    env: list[dict[str, Any]] = [{"name": key, "value": literal(value)} for key, value in sorted(values.items())]
    env.append({"name": "HYPERPOD_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options["image"],
        "command": [literal(word) for word in words],
        "env": env,
        "securityContext": LEAST,
        "volumeMounts": _mounts(shared, is_apart(options)),
    }
    if "resources" in options:
        amounts = pairs(options["resources"])
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    return container


def literal(text: str) -> str:
    """A text of which Kubernetes makes this text again: it replaces ``$(NAME)``, and reads ``$$`` as a dollar."""
    return text.replace("$", "$$")


def _affinity(job_id: str, options: Mapping[str, str], avoid: Sequence[str]) -> dict[str, Any]:
    """One element of a job per node, on nodes that the job's options allow, and none on nodes to be avoided."""
    one_each = {"labelSelector": {"matchLabels": {JOB: job_id}}, "topologyKey": "kubernetes.io/hostname"}
    affinity: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_each]}}
    if terms := _node_affinity(options, avoid):
        affinity["nodeAffinity"] = terms
    return affinity


def _node_affinity(options: Mapping[str, str], avoid: Sequence[str] = ()) -> dict[str, Any]:
    """On which nodes a pod may be, and on which of them it should: each preference counts the same."""
    term: dict[str, Any] = {}
    if avoid:
        term["matchFields"] = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoid]
    if rules := label_rules(options.get("affinity", "")):
        term["matchExpressions"] = [_expression(rule) for rule in rules]
    found: dict[str, Any] = {}
    if term:
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
    if wishes := label_rules(options.get("prefer", "")):
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 1, "preference": {"matchExpressions": [_expression(rule)]}} for rule in wishes
        ]
    return found


def _expression(rule: LabelRule) -> dict[str, Any]:
    return {"key": rule.key, "operator": rule.operator, **({"values": list(rule.values)} if rule.values else {})}


def _mounts(shared: Sequence[SharedDirectory], apart: bool) -> list[dict[str, Any]]:
    """What a container sees beside its image; where pods are ``apart``, a store of its own, too."""
    numbers = _numbered(shared)
    mounts = [
        {
            "name": _volume_name(numbers[_source(one)]),
            "mountPath": one.path,
            **({"subPath": one.within} if one.within else {}),
            **({"readOnly": True} if one.read_only else {}),
        }
        for one in shared
    ]
    if apart:
        mounts.append({"name": "store", "mountPath": OWN_STORE})
    return [*mounts, {"name": "memory", "mountPath": "/dev/shm"}]


def _own_address(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Tells a head its address, where its nodes ask it for files."""
    known = {"name": POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [known] if is_apart(options) else []


def _own_store(options: Mapping[str, str], claim: str = "") -> list[dict[str, Any]]:
    """The volume of a pod's own store, where it has one: it goes with the pod, unless it is of a ``claim``."""
    if not is_apart(options):
        return []
    return [{"name": "store", **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})}]


def _volumes(shared: Sequence[SharedDirectory]) -> list[dict[str, Any]]:
    """One volume for each claim, however often it is mounted: kubelets wait in vain for a second one of the same."""
    memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    return [*(_volume(number, source, shared) for source, number in _numbered(shared).items()), memory]


def _numbered(shared: Sequence[SharedDirectory]) -> dict[str, int]:
    return {source: number for number, source in enumerate(dict.fromkeys(map(_source, shared)))}


def _source(one: SharedDirectory) -> str:
    """What a directory is mounted from: the name of a claim, or a path of the nodes."""
    return one.claim or one.path


def _volume_name(number: int) -> str:
    return f"shared-{number}"


def _volume(number: int, source: str, shared: Sequence[SharedDirectory]) -> dict[str, Any]:
    mounted = [one for one in shared if _source(one) == source]
    if mounted[0].claim:
        read_only = all(one.read_only for one in mounted)
        claim = {"claimName": source, **({"readOnly": True} if read_only else {})}
        return {"name": _volume_name(number), "persistentVolumeClaim": claim}
    return {"name": _volume_name(number), "hostPath": {"path": source, "type": "Directory"}}


def _holding(path: str, shared: Sequence[SharedDirectory]) -> SharedDirectory | None:
    """The directory in which a path is."""
    place = PurePosixPath(os.path.normpath(path))
    return next((one for one in shared if PurePosixPath(one.path) in (place, *place.parents)), None)
