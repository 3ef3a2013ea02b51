"""``setup apply`` and ``setup remove``: make what is ours in a cluster, as often as one likes, and take away just that.

An object is ours by its label. One of the same name that somebody else has made is never changed or deleted. Each
namespace applies as a manager of its own, so that what several namespaces share stays until the last one is removed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...backends.kubernetes import manifests, parse, rights
from ...backends.kubernetes.client import MISSING, Api, ApiError
from ...backends.kubernetes.health import health_board
from ...backends.kubernetes.health.node_check import NAMESPACE as AGENTS_NAMESPACE
from ...backends.kubernetes.runner import NODES
from ...backends.kubernetes.workloads.workload import JOB, OPERATED
from ...core.errors import ClusterError
from ...core.units import few, plural
from . import health_objects
from .own_objects import KUEUE, OF, Object, label

CREATE, CHANGE, SAME, FOREIGN, DELETE, RELEASE, STAYS = (
    "create",
    "change",
    "same",
    "not ours",
    "delete",
    "release",
    "stays",
)
# what the server keeps about an object and nobody applies
_KEPT = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
# group and version, and kind: in the order in which they are removed
_KINDS = (
    ("apps/v1", "DaemonSet"),
    (f"{rights.RBAC}/v1", "ClusterRoleBinding"),
    (f"{rights.RBAC}/v1", "ClusterRole"),
    (f"{rights.RBAC}/v1", "RoleBinding"),
    (f"{rights.RBAC}/v1", "Role"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
    ("v1", "ServiceAccount"),
    ("v1", "Namespace"),
)
_QUEUES = ("LocalQueue", "ClusterQueue", "ResourceFlavor")
_NAMESPACED = frozenset(("Role", "RoleBinding", "LocalQueue", "DaemonSet", "ServiceAccount"))
_OF_AGENTS = ("DaemonSet", "ServiceAccount")  # they are in a namespace of their own
_OF_BOTH = ("Role", "RoleBinding")
# what a namespace may hold that somebody would miss; those of the cluster itself are no reason to keep it
_HOLDS = (
    ("/api/v1", "pods"),
    ("/api/v1", "persistentvolumeclaims"),
    ("/api/v1", "services"),
    ("/api/v1", "configmaps"),
    ("/api/v1", "secrets"),
    ("/apis/batch/v1", "jobs"),
    (f"/apis/{OPERATED.group}/{OPERATED.version}", OPERATED.plural),
    ("/apis/apps/v1", "deployments"),
    ("/apis/apps/v1", "statefulsets"),
    ("/apis/apps/v1", "daemonsets"),
)
_OF_CLUSTER = ("kube-root-ca.crt", "default-token-")


@dataclass(frozen=True, slots=True)
class Change:
    """What is done with one object. ``diff``: the lines that change; ``why``: where nothing is done."""

    action: str
    kind: str
    name: str
    body: Object
    diff: str = ""
    why: str = ""

    def to_json(self) -> dict[str, str]:
        """For scripts."""
        return {"action": self.action, "kind": self.kind, "name": self.name, "diff": self.diff, "why": self.why}


def place(one: Mapping[str, Any]) -> str:
    """The path of an object in the API."""
    about = one["metadata"]
    return f"{_folder(one['apiVersion'], one['kind'], about.get('namespace', ''))}/{about['name']}"


def _folder(version: str, kind: str, namespace: str) -> str:
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    inner = f"/namespaces/{namespace}" if kind in _NAMESPACED else ""
    return f"{base}{inner}/{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def manager(namespace: str) -> str:
    """As whom a namespace's objects are applied."""
    return f"jupyter-hyperpod-{namespace}"


def kueue_version(api: Api) -> str:
    """The version of Kueue's API that the cluster serves. Raises ClusterError where it has none that will do."""
    found = _kueue(api)
    if found not in ("v1beta1", "v1beta2"):
        raise ClusterError(
            f"queues need Kueue with v1beta1 or v1beta2, and the cluster has {found or 'none'}; install it first "
            "(https://kueue.sigs.k8s.io), or leave --nodes out"
        )
    return found


def _kueue(api: Api) -> str:
    for one in api.get("/apis").get("groups") or []:
        if one.get("name") == KUEUE:
            return str((one.get("preferredVersion") or {}).get("version") or "")
    return ""


def plan(api: Api, objects: Sequence[Object], namespace: str) -> list[Change]:
    """What `carry_out` would do. Raises ClusterError where an object of somebody else is in the way."""
    changes = [_change(api, one, namespace) for one in objects]
    if taken := [f"{one.kind} {one.name}" for one in changes if one.action == FOREIGN and one.diff]:
        raise ClusterError(
            f"{few(taken)} {'is' if len(taken) == 1 else 'are'} there already, made by somebody else, and differ from "
            "ours: nothing was changed; remove them, or ask who runs the cluster"
        )
    return changes


def _change(api: Api, one: Object, namespace: str) -> Change:
    kind, name, path = one["kind"], one["metadata"]["name"], place(one)
    found = _read(api, path)
    if not found:
        return Change(CREATE, kind, name, one, _diff({}, one))
    then = api.apply(path, one, manager(namespace), dry_run=True)
    if not _namespaces(found):
        same = _told(found, labels=False) == _told(then, labels=False)
        return Change(FOREIGN, kind, name, one, "" if same else _diff(found, then), "somebody else has made it")
    diff = _diff(found, then)
    return Change(CHANGE if diff else SAME, kind, name, one, diff)


def carry_out(api: Api, changes: Sequence[Change], namespace: str) -> None:
    """Create and change what `plan` said. Raises ApiError at the first that is refused; another try goes on there."""
    for one in changes:
        if one.action in (CREATE, CHANGE):
            api.apply(place(one.body), one.body, manager(namespace))


def plan_removal(api: Api, namespace: str) -> list[Change]:
    """What `remove` would do. Raises ClusterError while jobs run in the namespace."""
    jobs = _items(api, JOB.path(namespace), manifests.SELECTOR)
    operated = _items(api, OPERATED.path(namespace), manifests.SELECTOR)
    running = [one for one in jobs if (one.get("status") or {}).get("active") and not parse.is_over(one)]
    running += [one for one in operated if not parse.is_over(one)]
    if running:
        raise ClusterError(
            f"jobs run in {namespace}, on {plural(len(running), 'node')}: nothing was removed; `jupyter hyperpod stop` "
            "ends them"
        )
    changes = [_removal(api, one, namespace) for one in _ours(api, namespace)]
    if any(one.action == DELETE and one.kind == "DaemonSet" for one in changes):
        changes += [_unmarking(one) for one in _items(api, NODES) if parse.agent_health(one) is not None]
    return changes


def _unmarking(node: Object) -> Change:
    """What becomes of the marks of a node whose health agent goes."""
    record, name = parse.agent_health(node), node["metadata"]["name"]
    if record is not None and record.fences and parse.drained(node):
        why = f"it is out of service ({record.fault}); `jupyter hyperpod nodes resume {name}` returns it"
        return Change(STAYS, "Node", name, node, why=why)
    return Change(RELEASE, "Node", name, node, why="nobody watches its health any more")


def _ours(api: Api, namespace: str) -> Iterator[Object]:
    version = _kueue(api)
    queues = tuple((f"{KUEUE}/{version}", kind) for kind in _QUEUES) if version else ()
    for group, kind in (*queues, *_KINDS):
        places = [] if kind in _OF_AGENTS else [namespace]
        places += [AGENTS_NAMESPACE] if kind in (*_OF_AGENTS, *_OF_BOTH) else []
        for one in (one for place in places for one in _items(api, _folder(group, kind, place), label(namespace))):
            yield {**one, "apiVersion": group, "kind": kind}


def _removal(api: Api, one: Object, namespace: str) -> Change:
    kind, name = one["kind"], one["metadata"]["name"]
    if others := [other for other in _namespaces(one) if other != namespace]:
        return Change(RELEASE, kind, name, one, why=f"{few(others)} needs it, too")
    if kind == "Namespace" and (holds := _held(api, name, namespace)):
        return Change(STAYS, kind, name, one, why=f"it has {few(holds)}")
    return Change(DELETE, kind, name, one)


def _held(api: Api, within: str, namespace: str) -> list[str]:
    """What a namespace holds besides what is ours for one, and besides what each namespace has."""
    found = []
    for base, kind in _HOLDS:
        for one in _items(api, f"{base}/namespaces/{within}/{kind}"):
            name = str(one["metadata"]["name"])
            of_cluster = name.startswith(_OF_CLUSTER) and kind in ("configmaps", "secrets")
            of_agents = within == AGENTS_NAMESPACE and health_objects.is_agents(one)
            if not (of_cluster or of_agents) and label(namespace) not in (one["metadata"].get("labels") or {}):
                found.append(f"{kind}/{name}")
    return found


def remove(api: Api, changes: Sequence[Change], namespace: str) -> None:
    """Delete what `plan_removal` said, and let go of what others need. Raises ApiError at the first that is refused."""
    for one in changes:
        if one.action == DELETE:
            api.delete(place(one.body))
        elif one.action == RELEASE and one.kind == "Node":
            health_board.unmark(api, one.name)
        elif one.action == RELEASE:
            api.patch(place(one.body), {"metadata": {"labels": {label(namespace): None}}})


def _read(api: Api, path: str) -> Object:
    try:
        return api.get(path)
    except ApiError as error:
        if error.status == MISSING:
            return {}
        raise


def _items(api: Api, path: str, labels: str = "") -> list[Object]:
    try:
        return api.list(path, labels)[0]
    except ApiError as error:
        if error.status == MISSING:  # a kind that the cluster does not have
            return []
        raise


def _namespaces(one: Mapping[str, Any]) -> list[str]:
    """For which namespaces an object is there; none: it is not ours."""
    labels = (one.get("metadata") or {}).get("labels") or {}
    return sorted(name.partition("/")[2] for name in labels if name.startswith(f"{OF}/"))


def _told(one: Mapping[str, Any], labels: bool = True) -> Object:
    """An object without what the server alone keeps."""
    found = {name: value for name, value in one.items() if name != "status"}
    if "metadata" in found:
        left = (*_KEPT, *(() if labels else ("labels",)))
        found["metadata"] = {name: value for name, value in found["metadata"].items() if name not in left}
    return found


def _diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = (rights.as_yaml([_told(one)]).splitlines() if one else [] for one in (before, after))
    return "\n".join(
        line for line in difflib.unified_diff(old, new, lineterm="", n=1) if line[:3] not in ("---", "+++")
    )
