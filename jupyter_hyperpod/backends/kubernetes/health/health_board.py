"""Shows at a node of Kubernetes what its health agent has decided, under the names that SageMaker HyperPod uses.

Labels and an annotation tell it, a condition too; a node that is to get no new work is cordoned and has a taint. What
somebody else has cordoned stays cordoned. Nothing here reboots or replaces a machine: HyperPod acts on the label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from ....core.health import (
    DEEP,
    DETAILS,
    PENDING_REBOOT,
    PENDING_REPLACEMENT,
    REASONS,
    SCHEDULABLE,
    STATUS,
    TYPES,
    UNSCHEDULABLE,
    HealthRecord,
)
from .. import parse
from ..client import Api, ApiError
from ..runner import NODES, connect

CONDITION = "HyperpodNodeHealthy"
TAINT = {"key": STATUS, "value": UNSCHEDULABLE, "effect": "NoSchedule"}
OWN_REASON = "health: "  # how the reason at a node begins that its agent has cordoned
REASON_MOST, LABEL_MOST = 160, 63
UNMARK_TRIES = 5
LISTS = (TYPES, REASONS)
STATUSES = (SCHEDULABLE, UNSCHEDULABLE, PENDING_REBOOT, PENDING_REPLACEMENT)
TYPE = "node.kubernetes.io/instance-type"
_NO_LABEL = re.compile(r"[^A-Za-z0-9_.-]+")


class KubernetesHealthBoard:
    """See `core.health.HealthBoard`."""

    def __init__(self, node: str) -> None:
        self._path = f"{NODES}/{node}"
        self._api: Api = connect({})

    def read(self) -> HealthRecord | None:
        return parse.agent_health(self._api.get(self._path))

    def show(self, record: HealthRecord) -> None:
        node = self._api.get(self._path)
        self._api.patch(self._path, marks(node, record))
        told = condition(node, record, datetime.now(UTC))
        self._api.patch(f"{self._path}/status", {"status": {"conditions": [told]}}, "strategic")

    def returned(self) -> bool:
        return is_returned(self._api.get(self._path))

    def instance_type(self) -> str:
        return str(self._api.get(self._path)["metadata"].get("labels", {}).get(TYPE, ""))

    def close(self) -> None:
        self._api.close()

    def meaning(self, action: str) -> str:
        done = f"it is cordoned and has the taint {STATUS}={UNSCHEDULABLE}:NoSchedule"
        if action == "drain":
            return done
        return f"{done}; nothing here can {action} it: SageMaker HyperPod acts on its label, elsewhere a person has to"


def marks(node: Mapping[str, Any], record: HealthRecord) -> dict[str, Any]:
    """The change of a node that shows a record there, and that is refused if the node is another by now. Pure.

    Taint and cordon change only where the action does, so that nobody is overruled who has returned the node.
    """
    about, spec = node["metadata"], node.get("spec", {})
    noted, before, shown = about.get("annotations", {}), parse.agent_health(node), record.labels()
    reason = str(noted.get(parse.REASON, ""))
    ours = reason.startswith(OWN_REASON)
    labels: dict[str, str | None] = {name: label_value(shown[name]) if name in shown else None for name in LISTS}
    if not _is_stronger(about.get("labels", {}).get(STATUS, SCHEDULABLE), shown[STATUS], before):
        labels[STATUS] = shown[STATUS]
    told: dict[str, str | None] = {
        parse.AGENT: json.dumps(record.to_json(), separators=(",", ":")),
        DETAILS: shown.get(DETAILS),
    }
    change: dict[str, Any] = {}
    if before is None or before.gist != record.gist:
        others = [one for one in spec.get("taints") or () if one.get("key") != STATUS]
        if record.fences:
            change["taints"] = [*others, TAINT]
            if ours or not spec.get("unschedulable"):
                change["unschedulable"] = True
                told[parse.REASON] = f"{OWN_REASON}{record.reason}"[:REASON_MOST]
        elif parse.is_tainted(node) or ours:
            change["taints"] = others or None
            if ours:
                change["unschedulable"] = None
                told[parse.REASON] = None
    metadata = {"resourceVersion": about.get("resourceVersion"), "labels": labels, "annotations": told}
    return {"metadata": metadata, **({"spec": change} if change else {})}


def _is_stronger(status: str, wanted: str, before: HealthRecord | None) -> bool:
    """Whether a label is of somebody else, a person or HyperPod itself, who asks for more: that stays."""
    ours = before is not None and status == before.labels()[STATUS]
    return not ours and status in STATUSES and STATUSES.index(status) > STATUSES.index(wanted)


def unmark(api: Api, name: str) -> None:
    """Take away what an agent has shown at a node that is in service. Raises ClusterError."""
    path = f"{NODES}/{name}"
    notes = dict.fromkeys((parse.AGENT, DETAILS))
    about = {"labels": dict.fromkeys((STATUS, DEEP, *LISTS)), "annotations": notes}
    for tries_left in reversed(range(UNMARK_TRIES)):
        version = api.get(path)["metadata"]["resourceVersion"]
        try:
            api.patch(path, {"metadata": {**about, "resourceVersion": version}})
            break
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT or not tries_left:  # its kubelet writes, too
                raise
    gone = {"$patch": "delete", "type": CONDITION}
    api.patch(f"{path}/status", {"status": {"conditions": [gone]}}, "strategic")


def condition(node: Mapping[str, Any], record: HealthRecord, now: datetime) -> dict[str, str]:
    """The condition that tells a record to people and to `kubectl describe node`. Pure."""
    status = "True" if record.action == "watch" else "False"
    told = node.get("status", {}).get("conditions") or ()
    before: Mapping[str, str] = next((one for one in told if one.get("type") == CONDITION), {})
    now_text = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    since = before.get("lastTransitionTime", now_text) if before.get("status") == status else now_text
    return {
        "type": CONDITION,
        "status": status,
        "reason": record.fault if status == "False" and record.fault else "NothingFound",
        "message": record.reason,
        "lastHeartbeatTime": now_text,
        "lastTransitionTime": since,
    }


def is_returned(node: Mapping[str, Any]) -> bool:
    """Whether somebody has taken the taint or our cordon away from a node that its agent has put out of service."""
    record = parse.agent_health(node)
    if record is None or not record.fences:
        return False
    ours = str(node["metadata"].get("annotations", {}).get(parse.REASON, "")).startswith(OWN_REASON)
    return not parse.is_tainted(node) or (ours and not node.get("spec", {}).get("unschedulable"))


def label_value(text: str) -> str:
    """A list of names as the value of a label may be: whole names, as many as there is room for. Pure."""
    names, found = [_NO_LABEL.sub("-", name).strip("-._") for name in text.split("_")], ""
    for name in filter(None, names):
        longer = f"{found}_{name}" if found else name
        if len(longer) > LABEL_MOST:
            break
        found = longer
    return found
