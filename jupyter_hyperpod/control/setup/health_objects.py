"""The health agent of every node, as objects of Kubernetes: a DaemonSet with an account that may mark nodes. Pure.

They have a namespace of their own, because a cluster has one agent per node however many namespaces jobs run in. What
a pod may: read the node's ``/var/log``, and, only where that is asked for, the kernel's own log with all privileges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...backends.kubernetes import rights
from ...backends.kubernetes.health.node_check import NAME, NAMESPACE
from ...core.errors import SpecError
from ...core.health import RECOVERIES

CHECKS = "jupyter-hyperpod-checks"
AGENT = "jupyter_hyperpod.health.node_pod"
MARK = {"app.kubernetes.io/name": NAME}
LOGS, KERNEL_LOG, TEMPORARY = "/var/log", "/dev/kmsg", "/tmp"
ADM = 4  # the group that may read the kernel's log on Debian and Ubuntu
RULES = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
)
# of a person who may check nodes, in the namespace of the agents
CHECKING = (
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
)
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HealthAgents:
    """What a person asks for. ``python``: of the image. ``paths``: directories of the nodes that the pods see, too.

    ``recovery``: NodeRecovery. ``kernel_log``: read the kernel's log itself, for which a pod needs all privileges.
    """

    image: str
    python: str
    paths: tuple[str, ...] = ()
    recovery: str = RECOVERIES[0]
    kernel_log: bool = False

    def check(self) -> None:
        """Raise SpecError for what Kubernetes would refuse, or what could not start."""
        for what, path in (("--health-python", self.python), *(("--health-path", path) for path in self.paths)):
            if not path.startswith("/") or {"", ".", ".."} & set(path[1:].split("/")):
                raise SpecError(f"{what} is {path[:80]!r}, expected a plain path such as /opt/environment/bin/python")
        if not self.image or self.image != self.image.strip() or len(self.image.split()) != 1:
            raise SpecError(f"--health is {self.image[:80]!r}, expected an image such as registry.example/team/train:3")


def health_objects(wish: HealthAgents, priority_class: str) -> list[Object]:
    """All of them, in the order in which they can be made."""
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    role = {"apiGroup": rights.RBAC, "kind": "ClusterRole", "name": NAME}
    about = {"name": NAME, "namespace": NAMESPACE}
    # directories of the node are refused elsewhere, where a cluster enforces the standards for pods
    admitted = {"pod-security.kubernetes.io/enforce": "privileged"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": admitted}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(about)},
        {"apiVersion": f"{rights.RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": [*RULES]},
        {
            "apiVersion": f"{rights.RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role,
            "subjects": [account],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": dict(about),
            "spec": {
                "selector": {"matchLabels": dict(MARK)},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}},
                "template": {"metadata": {"labels": dict(MARK)}, "spec": _pod(wish, priority_class)},
            },
        },
    ]


def checking(namespace: str, whom: Mapping[str, str]) -> list[Object]:
    """What lets a person, or an account of a namespace, check nodes, in the agents' namespace.

    Whoever may make Jobs there may run pods with the directories and privileges of nodes.
    """
    about = {"name": f"{CHECKS}-{''.join(rights.owned(namespace, whom))}", "namespace": NAMESPACE}
    role = {"kind": "Role", "apiGroup": rights.RBAC, "name": about["name"]}
    return [
        {"apiVersion": f"{rights.RBAC}/v1", "kind": "Role", "metadata": dict(about), "rules": [*CHECKING]},
        {
            "apiVersion": f"{rights.RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": dict(about),
            "roleRef": role,
            "subjects": [dict(whom)],
        },
    ]


def _pod(wish: HealthAgents, priority_class: str) -> Object:
    seen = [_seen("logs", LOGS), *(_seen(f"path-{number}", path) for number, path in enumerate(wish.paths))]
    seen += [_seen("kernel-log", KERNEL_LOG, "CharDevice")] if wish.kernel_log else []
    program = [wish.python, "-m", AGENT, "--backend", "kubernetes", "--recovery", wish.recovery, "--node", "$(NODE)"]
    least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "agent",
        "image": wish.image,
        "command": program,
        "env": [
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "HOME", "value": TEMPORARY},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            # NVIDIA's runtime shows the devices to who asks so; they stay free for jobs
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {"readOnlyRootFilesystem": True, **({"privileged": True} if wish.kernel_log else least)},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *(mount for mount, _ in seen),
            {"name": "temporary", "mountPath": TEMPORARY},
        ],
    }
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "priorityClassName": priority_class,  # no job may push it off its node
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],  # it stays where nothing else may
        "securityContext": {
            "runAsUser": 0,  # whose the logs are; it has none of root's capabilities
            "supplementalGroups": [ADM],
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [*(volume for _, volume in seen), {"name": "temporary", "emptyDir": {}}],
    }


def _seen(name: str, path: str, kind: str = "") -> tuple[Object, Object]:
    """The mount and the volume of a place of the node, for reading only."""
    there = {"path": path, **({"type": kind} if kind else {})}
    return {"name": name, "mountPath": path, "readOnly": True}, {"name": name, "hostPath": there}


def is_agents(one: Mapping[str, Any]) -> bool:
    """Whether an object is made by ours: a pod of the DaemonSet, or what a cluster makes for an account."""
    about = one["metadata"]
    owners: Sequence[Mapping[str, Any]] = about.get("ownerReferences") or ()
    of = (about.get("annotations") or {}).get("kubernetes.io/service-account.name", "")
    return any(owner.get("kind") == "DaemonSet" and owner.get("name") == NAME for owner in owners) or of == NAME
