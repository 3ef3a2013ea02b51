"""What an account has to be allowed for jobs to run, and the Role that allows just that. Pure.

The API is asked about each of them before a job is submitted (`inquiry`), so a right that is missing is named at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from .workloads.workload import OPERATED, OPERATOR_GROUP

NAME, REMEDIES = "jupyter-hyperpod", "jupyter-hyperpod-remedies"
READING = ("get", "list", "watch")
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one kind of object. ``needed``: no job runs without it; otherwise only ``purpose`` is missed."""

    verb: str
    resource: str  # with its subresource, such as pods/exec
    purpose: str
    group: str = ""
    cluster: bool = False  # of the whole cluster, not of the namespace
    needed: bool = True

    @property
    def what(self) -> str:
        """As RBAC and the API server's own refusals call it: ``create jobs.batch``."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


RIGHTS = (
    Right("create", "jobs", "starting the nodes of a job", "batch"),
    Right("list", "jobs", "following the nodes of a job", "batch"),
    Right("delete", "jobs", "ending the nodes of a job", "batch"),
    Right("patch", "jobs", "keeping pods for the next job", "batch", needed=False),
    *(
        Right(verb, OPERATED.plural, f"{purpose} with operator=hyperpod", OPERATOR_GROUP, needed=False)
        for verb, purpose in {
            "create": "starting the nodes of a job",
            "list": "following the nodes of a job",
            "watch": "hearing at once of what happens to the nodes of a job",
            "delete": "ending the nodes of a job",
        }.items()
    ),
    Right("list", "pods", "following the nodes of a job"),
    Right("watch", "jobs", "hearing at once of what happens to the nodes of a job", "batch", needed=False),
    Right("watch", "pods", "hearing at once of what happens to the nodes of a job", needed=False),
    Right("delete", "pods", "letting a node leave a job with notice"),
    Right("patch", "pods", "keeping pods for the next job", needed=False),
    Right("list", "events", "saying why a pod is not started by its node", needed=False),
    # both, because a websocket counts as reading before Kubernetes 1.35 and as creating since
    Right("get", "pods/exec", "sending signals to the programs of a job", needed=False),
    Right("create", "pods/exec", "sending signals to the programs of a job", needed=False),
    Right("get", "persistentvolumeclaims", "checking the claims of a job before it is submitted", needed=False),
    Right("list", "resourcequotas", "checking quotas before a job is submitted", needed=False),
    Right("list", "limitranges", "checking limits before a job is submitted", needed=False),
    Right("get", "localqueues", "checking the queue before a job is submitted", "kueue.x-k8s.io", needed=False),
    Right(
        "get",
        "priorityclasses",
        "checking priority classes before a job is submitted",
        "scheduling.k8s.io",
        cluster=True,
        needed=False,
    ),
    Right("list", "nodes", "showing the states of nodes", cluster=True, needed=False),
    Right("get", "nodes", "asking for one node's state", cluster=True, needed=False),
    Right("patch", "nodes", "taking broken nodes out of service", cluster=True, needed=False),
)


REFUSED = re.compile(r'User "([^"]+)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"')


def remedy(message: str) -> str:
    """What gives a right whose lack the API server has told, where it is one of these; "" otherwise."""
    found = REFUSED.search(message)
    if found is None or found.groups()[1:] not in {(one.verb, one.resource, one.group) for one in RIGHTS}:
        return ""
    kind, _, name = found[1].rpartition(":")
    if not kind.startswith("system:serviceaccount:"):
        return "ask who runs the cluster for this right: `jupyter hyperpod setup role` prints the Role"
    return (
        f"give the service account {name} what `jupyter hyperpod setup role --account {name}` prints, or, where the "
        "head of a job runs in a pod (head=pod), name an account that has it: --kubernetes account=NAME"
    )


def review(right: Right, namespace: str) -> dict[str, Any]:
    """The question whether this account has a right; the API answers it without any right."""
    resource, _, subresource = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource}
    asked |= {"subresource": subresource} if subresource else {}
    asked |= {} if right.cluster else {"namespace": namespace}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    return {**kind, "spec": {"resourceAttributes": asked}}


def rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """The rules that allow these rights and nothing else; kinds with the same verbs are in one rule."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": allowed}
        for (group, resource), allowed in verbs.items()
    ]


def manifests(namespace: str, whom: Mapping[str, str], remedies: bool = False) -> list[dict[str, Any]]:
    """The roles and their bindings: in the namespace, what reads the cluster, and on request what changes nodes."""
    of, name = owned(namespace, whom)
    reads = [right for right in RIGHTS if right.cluster and right.verb in READING]
    found = [
        _role("Role", NAME, [right for right in RIGHTS if not right.cluster], namespace),
        _binding("RoleBinding", NAME, whom, name, namespace),
        _role("ClusterRole", NAME, reads, ""),
        _binding("ClusterRoleBinding", NAME, whom, of + name, ""),
    ]
    if remedies:
        changes = [right for right in RIGHTS if right.cluster and right.verb not in READING]
        found.append(_role("ClusterRole", REMEDIES, changes, ""))
        found.append(_binding("ClusterRoleBinding", REMEDIES, whom, of + name, ""))
    return found


def owned(namespace: str, whom: Mapping[str, str]) -> tuple[str, str]:
    """What the names of bindings for a subject begin with outside its namespace, and what they end with."""
    return (f"{namespace}-" if whom["kind"] == "ServiceAccount" else ""), _slug(whom["name"])


def subject(namespace: str, account: str = "", user: str = "", group: str = "") -> dict[str, str]:
    """Who gets the rights: a user, a group, or a service account of the namespace."""
    if user or group:
        return {"kind": "User" if user else "Group", "apiGroup": RBAC, "name": user or group}
    return {"kind": "ServiceAccount", "name": account or "default", "namespace": namespace}


def as_yaml(made: Sequence[dict[str, Any]], quoted: str = "") -> str:
    """Manifests as text for `kubectl apply -f -`; what contains ``quoted`` is on one line, in quotes."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def represent_str(self, text: str) -> Any:
            return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted in text else None)

    if not quoted:
        return str(yaml.safe_dump_all(made, sort_keys=False))
    Dumper.add_representer(str, Dumper.represent_str)
    return str(yaml.dump_all(made, Dumper=Dumper, sort_keys=False, width=10_000))


def _role(kind: str, name: str, rights: Sequence[Right], namespace: str) -> dict[str, Any]:
    about = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": about, "rules": rules(rights)}


def _binding(kind: str, role: str, whom: Mapping[str, str], name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": f"{role}-{name}", **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": RBAC, "kind": kind.removesuffix("Binding"), "name": role},
        "subjects": [dict(whom)],
    }


def _slug(name: str) -> str:
    """A part of an object's name for somebody; two people never have the same."""
    plain = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")[:100]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-.")
