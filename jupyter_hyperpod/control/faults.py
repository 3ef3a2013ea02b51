"""Faults of whole nodes, injected by whoever owns the nodes."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from ..backends.local.host import LocalHost
from ..core.errors import ClusterError
from ..core.events import FAULTS
from .entry import Entry

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


def break_node(host: LocalHost, entries: Mapping[str, Entry], node: str, kind: str) -> tuple[bool, str]:
    """Inject a fault into a node, journaled in every job that runs on it; returns whether it was, and a sentence."""
    place = host.nodes.get(node)
    if kind not in FAULTS or "node" not in FAULTS[kind].aims:
        return False, f"fault {kind!r} is unknown" if kind not in FAULTS else f"{kind} cannot be aimed at a node"
    if place is None or place.pid is None:
        return False, f"no node {node!r} is up"
    if kind == "partition":
        try:
            host.cut(node)
        except ClusterError as error:
            return False, str(error)
    for job_id in place.jobs:
        if job_id in entries:
            entries[job_id].pen.write("fault.injected", {"fault": kind, "node": node, "rank": None, "member": None})
    if kind == "partition":
        return True, f"{node} is cut off from the network"
    if kind == "preempt":
        for job_id in place.jobs:
            host.signal_job(job_id, node, signal.SIGUSR1)
        return True, f"SIGUSR1 sent to the agents on {node}"
    host.signal_node(node, SIGNALS[kind])
    return True, f"{SIGNALS[kind].name} sent to {node} (process group {place.pid})"


def heal(host: LocalHost, name: str | None) -> list[str]:
    """Bring nodes that are cut off back to the network, one or all; returns their names. Raises ClusterError."""
    if name is not None and name not in host.nodes:
        raise ClusterError(f"there is no node {name[:80]!r}; expected one of {', '.join(host.nodes)}")
    healed = [node.name for node in host.nodes.values() if node.cut and name in (None, node.name)]
    for node in healed:
        host.heal(node)
    return healed
