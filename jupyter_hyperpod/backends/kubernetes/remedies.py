"""Acts on a cluster's nodes through its API: cordons them, and asks SageMaker HyperPod to reboot or replace them.

HyperPod acts on a node whose label ``sagemaker.amazonaws.com/node-health-status`` says so; elsewhere that label only
tells that the node should not be used. Who may not change nodes is told so by the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ClusterError
from ...core.health import DEEP, PENDING_REBOOT, PENDING_REPLACEMENT, STATUS
from ..types import NodeInfo
from . import parse
from .client import MISSING, ApiError
from .health import node_check
from .kubeconfig import read_access
from .runner import NODES, connect

OWN_REASON = "hyperpod: "
REASON_MOST = 160
ASKS = {"reboot": PENDING_REBOOT, "replace": PENDING_REPLACEMENT}


class KubernetesRemedies:
    """See `backends.base.Remedies`."""

    shares_store = False

    def installed(self) -> bool:
        try:
            read_access()
        except ClusterError:
            return False
        return True

    def carry_out(self, node: str, action: str, why: str) -> str:
        if action in ASKS:
            self._change(node, action, f"{OWN_REASON}{why}", {STATUS: ASKS[action]})
            return f"the node is cordoned, and its label {STATUS} is {ASKS[action]}"
        if action != "drain":
            raise ClusterError(f"Kubernetes cannot {action} a node; it can drain, reboot and replace one")
        self._change(node, action, f"{OWN_REASON}{why}")
        return "Kubernetes drains it: the node is cordoned"

    def resume(self, node: str) -> None:
        found = self._get(node)
        reason = ((found or {}).get("metadata", {}).get("annotations") or {}).get(parse.REASON, "")
        if str(reason).startswith(OWN_REASON):
            self.put_back(node)

    def put_back(self, node: str) -> None:
        spec: dict[str, Any] = {"unschedulable": None}
        about: dict[str, Any] = {"labels": {STATUS: None}, "annotations": {parse.REASON: None}}
        found = self._get(node)
        if found is not None and parse.is_tainted(found):  # the node's health agent hears of it by that
            spec["taints"] = [one for one in found["spec"]["taints"] if one.get("key") != STATUS] or None
            about["resourceVersion"] = found["metadata"]["resourceVersion"]
        with connect({}) as api:
            api.patch(f"{NODES}/{node}", {"metadata": about, "spec": spec})

    def serves(self, node: str) -> bool:
        found = self._get(node)
        return found is not None and parse.state(found)[0] == parse.READY

    def node_info(self, node: str) -> NodeInfo | None:
        found = self._get(node)
        return parse.node_info(found) if found is not None else None

    def run_on(self, node: str, words: Sequence[str], name: str, directory: Path, limit_s: float) -> str:
        with connect({"namespace": node_check.NAMESPACE}) as api:
            return node_check.run(api, node, words, name, limit_s)

    def show_check(self, node: str, state: str) -> str:
        found = self._get(node)
        with connect({}) as api:
            api.patch(f"{NODES}/{node}", {"metadata": {"labels": {DEEP: state or None}}})
        return str(((found or {}).get("metadata", {}).get("labels") or {}).get(DEEP, ""))

    def recovery(self) -> str:
        try:
            with connect({}) as api:
                return node_check.recovery(api.get(node_check.AGENTS))
        except ApiError:  # there are none, or they are not to be seen
            return ""

    def _get(self, node: str) -> dict[str, Any] | None:
        try:
            with connect({}) as api:
                return api.get(f"{NODES}/{node}")
        except ApiError as error:
            if error.status == MISSING:
                return None
            raise

    def _change(self, node: str, action: str, reason: str, labels: Mapping[str, str] | None = None) -> None:
        body: dict[str, Any] = {
            "metadata": {"annotations": {parse.REASON: reason[:REASON_MOST]}, "labels": dict(labels or {})},
            "spec": {"unschedulable": True},
        }
        with connect({}) as api:
            api.patch(f"{NODES}/{node}", body)
