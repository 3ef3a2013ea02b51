"""Injects faults into whole nodes, coordinators and the supervisor itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from ..backends.base import Host
from ..backends.types import HEAD
from ..core.errors import ClusterError, NotFound
from ..core.events import FAULTS, TARGETS, Command
from .entry import JobEntry

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
NODE_SIGNALS = SIGNALS | {"preempt": signal.SIGUSR1}


def break_node(host: Host, entries: Mapping[str, JobEntry], node: str, kind: str) -> tuple[bool, str]:
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
            entries[job_id].journal.write("fault.injected", {"fault": kind, "node": node, "rank": None, "member": None})
    if kind == "partition":
        return True, f"{node} is cut off from the network"
    if kind == "preempt":
        for job_id in place.jobs:
            host.signal(job_id, node, signal.SIGUSR1)
        return True, f"SIGUSR1 sent to the agents on {node}"
    host.signal_node(node, SIGNALS[kind])
    return True, f"{SIGNALS[kind].name} sent to {node} (process group {place.pid})"


def break_target(host: Host, entry: JobEntry, command: Command) -> None:
    """Send a signal to the job's coordinator or to this very process, and journal that first."""
    target, number = command.data["target"], SIGNALS.get(command.data["fault"])
    if number is None or target not in TARGETS:
        entry.done(command, False, f"{command.data['fault']} cannot be aimed at the {target}")
        return
    if target == "coordinator" and entry.job.id not in host.head.jobs:
        entry.done(command, False, "the job's coordinator is not up")
        return
    injected = {"fault": command.data["fault"], "node": HEAD, "rank": None, "member": None, "target": target}
    entry.journal.write("fault.injected", injected)
    entry.done(command, True, f"{number.name} sent to the {target}")
    if target == "coordinator":
        entry.heartbeat.injected_s = time.monotonic()
        host.signal(entry.job.id, HEAD, number)
    elif entry.journal.flush():  # else the next supervisor would find the command not done, and do it again
        os.kill(os.getpid(), number)


def heal(host: Host, name: str | None) -> list[str]:
    """Bring nodes that are cut off back to the network, one or all; returns their names. Raises NotFound."""
    if name is not None and name not in host.nodes:
        raise NotFound(f"there is no node {name[:80]!r}; expected one of {', '.join(host.nodes)}")
    healed = [node.name for node in host.nodes.values() if node.cut and name in (None, node.name)]
    for node in healed:
        host.heal(node)
    return healed
