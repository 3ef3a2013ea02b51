"""The objects of Kubernetes that are ours: namespace, roles, priority classes, queues, and health agents. Pure.

What belongs to the whole cluster may be needed by several namespaces: it has a label for each, and goes with the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...backends.kubernetes import rights
from ...backends.kubernetes.components import OWN_CLASSES
from .health_objects import HealthAgents, checking, health_objects
from .node_groups import NodeGroup
from .versions import table

PART_OF = {"app.kubernetes.io/part-of": "jupyter-hyperpod"}
OF = "setup.jupyter-hyperpod"  # the prefix of the labels that say for which namespaces an object is there
BASE, ELASTIC = OWN_CLASSES
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
KUEUE = "kueue.x-k8s.io"
Object = dict[str, Any]


def label(namespace: str) -> str:
    """The label of what is there for a namespace."""
    return f"{OF}/{namespace}"


def queue_names(namespace: str) -> tuple[str, str]:
    """The names of its local queue and of its cluster queue."""
    return f"{namespace}-localqueue", f"{namespace}-clusterqueue"


def own_objects(
    namespace: str,
    subject: Mapping[str, str],
    remedies: bool = False,
    groups: Sequence[NodeGroup] = (),
    kueue: str = "",
    agents: HealthAgents | None = None,
) -> list[Object]:
    """All of them in the order in which they can be made; queues for ``groups`` only, in a version of Kueue's API.

    ``agents``: health agents on the nodes, if wanted.
    """
    made: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    made += priority_classes()
    made += rights.manifests(namespace, subject, remedies)
    made += queues(namespace, groups, kueue or table("charts")["kueue"]["api"]) if groups else []
    made += health_objects(agents, BASE) if agents else []
    made += checking(namespace, subject) if agents and remedies else []
    for one in made:
        one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **PART_OF, label(namespace): ""}
    return made


def priority_classes() -> list[Object]:
    """Of the nodes that an elastic job needs, and of those that it may lose to anybody."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    needed = "nodes without which a job of jupyter-hyperpod cannot run"
    more = "nodes that a job of jupyter-hyperpod gives to whoever needs them"
    return [
        {**kind, "metadata": {"name": BASE}, "value": 1000, "description": needed},
        {**kind, "metadata": {"name": ELASTIC}, "value": -1, "preemptionPolicy": "Never", "description": more},
    ]


def queues(namespace: str, groups: Sequence[NodeGroup], version: str) -> list[Object]:
    """A local queue whose quota is what the groups have: devices, or pods where there are none."""
    local, cluster = queue_names(namespace)
    kind = {"apiVersion": f"{KUEUE}/{version}"}
    flavors = [
        {
            **kind,
            "kind": "ResourceFlavor",
            "metadata": {"name": f"{namespace}-{group.name}"},
            "spec": {"nodeLabels": {INSTANCE_TYPE: group.type}},
        }
        for group in groups
    ]
    covered = sorted({name for group in groups for name in group.amounts()}) or ["pods"]
    quotas = [
        {
            "name": f"{namespace}-{group.name}",
            "resources": [
                {"name": name, "nominalQuota": group.count * {"pods": 1, **group.amounts()}.get(name, 0)}
                for name in covered
            ],
        }
        for group in groups
    ]
    return [
        *flavors,
        {
            **kind,
            "kind": "ClusterQueue",
            "metadata": {"name": cluster},
            "spec": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{"coveredResources": covered, "flavors": quotas}],
            },
        },
        {
            **kind,
            "kind": "LocalQueue",
            "metadata": {"name": local, "namespace": namespace},
            "spec": {"clusterQueue": cluster},
        },
    ]
