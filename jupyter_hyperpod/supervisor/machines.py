"""Journals the state of each node, and describes free nodes for the scaling policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ..backends.types import HostNode
from ..policy.scaling import ScalableNode
from ..storage.journal_writer import JournalWriter

OUT_OF_REACH_S = 3.0


class Machines:
    """When each node became free or was cut off, and its last journaled state."""

    def __init__(self) -> None:
        self._free_since_s: dict[str, float] = {}
        self._cut_since_s: dict[str, float] = {}
        self._seen: dict[str, tuple[object, ...]] = {}  # of which a record is made, by node
        self._written: dict[str, dict[str, Any]] = {}
        self._taken: dict[str, ScalableNode] = {}
        self.avoided: tuple[str, ...] = ()  # repeat offenders

    def held(self, nodes: Iterable[HostNode], now_s: float) -> defaultdict[str, list[str]]:
        """The nodes of each job, without those that it has lost."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for node in nodes:
            if node.jobs and not self.lost(node, now_s):
                for job_id in node.jobs:
                    found[job_id].append(node.name)
        return found

    def lost(self, node: HostNode, now_s: float) -> bool:
        """Whether the job has lost this node: it was drained, or cut off until its member was fenced."""
        if not node.cut:
            self._cut_since_s.pop(node.name, None)
            return bool(node.drained)
        return now_s - self._cut_since_s.setdefault(node.name, now_s) > OUT_OF_REACH_S

    def machine(self, node: HostNode, now_s: float) -> ScalableNode:
        """The node as `policy.scaling` sees it; a drained one is ``away``."""
        up = node.state == "idle" and not node.drained
        if not up or node.jobs or node.cut:
            self._free_since_s.pop(node.name, None)
            known, away = self._taken.get(node.name), bool(node.drained)
            if known is None or (known.spare, known.up, known.away) != (node.spare, up, away):
                known = self._taken[node.name] = ScalableNode(node.name, node.spare, False, up, away=away)
            return known
        idle_s = now_s - self._free_since_s.setdefault(node.name, now_s)
        return ScalableNode(node.name, node.spare, True, True, idle_s, node.name in self.avoided)

    def write_states(self, nodes: Iterable[HostNode], journal: JournalWriter) -> None:
        """Write the state of each node that is another than the journal says."""
        for node in nodes:
            seen = (
                node.state, node.reason, node.cut, node.drained, node.spare, node.pid, node.incarnation, *node.jobs
            )  # fmt: skip
            if self._seen.get(node.name) == seen:
                continue
            self._seen[node.name] = seen
            record = node_record(node)
            if self._written.get(node.name) != record:
                self._written[node.name] = record
                journal.write("node.state", record)


def runs_on(job_id: str, *nodes: HostNode) -> bool:
    """Whether processes of a job are left there."""
    return any(job_id in node.jobs for node in nodes)


def node_record(node: HostNode) -> dict[str, Any]:
    """The data of a `node.state` event."""
    jobs = sorted(node.jobs)
    return {
        "node": node.name,
        "state": _state(node),
        "reason": node.reason if node.cut else node.drained or node.reason,
        "spare": node.spare,
        "slots": 1,
        "used": len(jobs),
        "jobs": jobs,
        "pid": node.pid,
        "incarnation": node.incarnation,
    }


def _state(node: HostNode) -> str:
    if node.state != "idle":
        return node.state
    if node.cut:
        return "partitioned"
    return "drained" if node.drained else "busy" if node.jobs else "idle"
