"""Answers the requests that clients send to the supervisor's socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from ..backends.base import Host
from ..storage.journal_writer import JournalWriter
from ..storage.store import JobStore, Store
from ..system.json_lines import Message
from ..system.processes import identify
from .entry import JobEntry
from .faults import break_node, heal
from .recall import Recall

REQUESTS = "poke, status, stop, node-fault, heal, or extend where there are no nodes"


class SupervisedCluster(Protocol):
    """The part of the supervisor that requests read and change."""

    store: Store
    host: Host
    pen: JournalWriter
    entries: dict[str, JobEntry]
    reading: Recall
    shape: dict[str, bool]
    queues: dict[str, int]

    def load(self, job: JobStore) -> None: ...
    def read_on(self) -> None: ...
    def extend(self, nodes: int, spares: int, queues: Mapping[str, int]) -> None: ...
    def stop(self, reason: str) -> None: ...


class Requests:
    """Answers requests about a cluster."""

    def __init__(self, cluster: SupervisedCluster) -> None:
        self._cluster = cluster

    def answer(self, message: Message) -> Message:
        """Carry out a request and return its answer. Raises HyperpodError, or what a request of nonsense leads to."""
        cluster, operation = self._cluster, message.get("op")
        if operation == "poke":
            job_id = message.get("job")
            if isinstance(job_id, str) and job_id not in cluster.entries and job_id not in cluster.reading:
                cluster.load(cluster.store.job(job_id))
                cluster.read_on()
            return {"ok": True}
        if operation == "status":
            return {"ok": True, **self._status()}
        if operation == "stop":
            cluster.stop(str(message.get("reason") or "the cluster was stopped"))
            return {"ok": True, **self._status()}
        if operation == "node-fault":
            ok, reason = break_node(cluster.host, cluster.entries, str(message.get("node")), str(message.get("kind")))
            return {"ok": ok, "reason": reason} if ok else {"ok": False, "error": reason}
        if operation == "heal":
            return {"ok": True, "healed": heal(cluster.host, message.get("node"))}
        if operation == "extend" and not cluster.shape:
            cluster.extend(int(message["nodes"]), int(message["spares"]), message["queues"])
            return {"ok": True, **self._status()}
        return {"ok": False, "error": f"unknown request {operation!r}; expected {REQUESTS}"}

    def _status(self) -> Message:
        cluster, me = self._cluster, identify(os.getpid())
        spares = sum(cluster.shape.values())
        states = {node.name: node.state for node in cluster.host.nodes.values()}
        ready = all(state == "idle" for state in states.values())
        size = {"nodes": len(cluster.shape) - spares, "spares": spares, "queues": cluster.queues}
        facts = {"pid": me.pid, "start": me.start, "isolated": cluster.host.isolated, **size}
        facts |= {"heads": len(cluster.host.head.jobs), "jobs": sorted({*cluster.entries, *cluster.reading})}
        facts["reading"] = len(cluster.reading)
        return {**facts, "ready": ready, "states": states, "problem": cluster.pen.problem}
