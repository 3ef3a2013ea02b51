"""The supervisor's socket: answers the requests that clients send."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ..backends.base import Host
from ..control.cluster import SOCKET
from ..core.errors import NotFound
from ..storage.journal_writer import JournalWriter
from ..storage.store import JobStore, Store
from ..system.json_lines import JsonLineChannel, Message, listen
from ..system.listener import Listener
from ..system.processes import identify
from .entry import JobEntry
from .faults import break_node, heal
from .idle_watch import HIDDEN, IdleWatch
from .succession import Succession

REQUESTS = "poke, status, keep, stop, leave, node-fault, heal, or extend where there are no nodes"


class SupervisedCluster(Protocol):
    """The part of the supervisor that requests read and change."""

    store: Store
    directory: Path
    succession: Succession
    host: Host
    journal: JournalWriter
    entries: dict[str, JobEntry]
    reading: dict[str, JobEntry]
    shape: dict[str, bool]
    queues: dict[str, int]
    idle: IdleWatch

    def load(self, job: JobStore) -> None: ...
    def read_on(self) -> None: ...
    def extend(self, nodes: int, spares: int, queues: Mapping[str, int]) -> None: ...
    def stop(self, reason: str) -> None: ...


class Requests(Listener):
    """Answers requests about a cluster at the store's socket; each answer has an ``ok``."""

    def __init__(self, cluster: SupervisedCluster, selector: selectors.BaseSelector) -> None:
        super().__init__(listen(cluster.directory, SOCKET), selector)
        self._cluster = cluster

    def close(self) -> None:
        """Remove the socket's file: clients do not find this supervisor any more."""
        for name in (SOCKET, HIDDEN):
            (self._cluster.directory / name).unlink(missing_ok=True)

    def handle(self, message: Message, channel: JsonLineChannel) -> None:
        """Answer a request; a connection whose request was refused does not stay."""
        channel.send(answer := self.answer(message))
        channel.closed |= not answer["ok"]

    def refuse(self, error: Exception, channel: JsonLineChannel) -> None:
        channel.send({"ok": False, "error": str(error)})

    def answer(self, message: Message) -> Message:
        """Carry out a request and return its answer. Raises HyperpodError, or what a request of nonsense leads to."""
        cluster, operation = self._cluster, message.get("op")
        if operation == "leave":
            cluster.succession.over = True  # as where another host has taken over: what runs here ends, and no job does
            return {"ok": True}
        if not cluster.succession.turn and operation != "stop":
            return self._while_standing_by(str(operation))
        if operation != "status" or message.get("use"):  # servers and forms ask again and again how it stands
            cluster.idle.used()
        if operation == "keep":
            return {"ok": True}
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
            try:
                return {"ok": True, "healed": heal(cluster.host, message.get("node"))}
            except NotFound as error:
                return {"ok": False, "unknown": True, "error": str(error)}
        if operation == "extend" and not cluster.shape:
            cluster.extend(int(message["nodes"]), int(message["spares"]), message["queues"])
            return {"ok": True, **self._status()}
        return {"ok": False, "error": f"unknown request {operation!r}; expected {REQUESTS}"}

    def _while_standing_by(self, operation: str) -> Message:
        served = self._cluster.succession.served
        if operation == "take-over":
            taken = self._cluster.succession.try_to_take(time.monotonic(), at_once=True)
            return {"ok": taken, "error": f"another host takes over from {served} at this moment"}
        if operation in ("poke", "status"):  # the host that serves the store finds new jobs by itself
            return {"ok": True, **self._status(), "standby_for": served}
        return {"ok": False, "error": f"the supervisor of this store is on {served}; run this there"}

    def _status(self) -> Message:
        cluster, me = self._cluster, identify(os.getpid())
        spares = sum(cluster.shape.values())
        states = {node.name: node.state for node in cluster.host.nodes.values()}
        ready = all(state == "idle" for state in states.values())
        size = {"nodes": len(cluster.shape) - spares, "spares": spares, "queues": cluster.queues}
        facts = {"pid": me.pid, "start": me.start, "isolated": cluster.host.isolated, **size}
        facts |= {"heads": len(cluster.host.head.jobs), "jobs": sorted({*cluster.entries, *cluster.reading})}
        facts["reading"] = len(cluster.reading)
        return {**facts, "ready": ready, "states": states, "problem": cluster.journal.problem}
