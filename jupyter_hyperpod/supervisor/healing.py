"""The supervisor's part in healing: it starts this machine's health agent, asks jobs to leave faulty nodes, and reboots
or replaces nodes of the local cluster. It reads the requested remedies from the cluster's journal; where a scheduler
keeps the health of its nodes, it journals that first."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..backends.base import Host
from ..backends.types import HostNode
from ..core.errors import SpecError
from ..core.events import Event
from ..core.health import BY_HAND, HealthRecord, labels, reason_action
from ..health import check
from ..health.agent import stand_in
from ..policy.healing import Past, avoid
from ..storage.journal_search import Search
from ..storage.journal_writer import JournalWriter
from ..storage.store import Store
from ..system.diagnostics import open_log
from .allocation.allocations import Allocations
from .entry import JobEntry
from .machines import Machines

AGENT = "jupyter_hyperpod.health.agent"
LOOK_S = 0.25
READ_S = 0.05
AGENT_PAUSE_S = 5.0
NEWS_S = 60.0  # what was asked for longer ago has been done, or will not be by telling jobs
HOLD_S = 10.0  # who was on a node when something was found there is known by then
LEAVE_S = 60.0  # longer than most jobs' grace time: what has not left by then is lost with the node


@dataclass
class Repair:
    """A local node that is drained first and then restarted."""

    action: str
    fault: str
    incident: str
    began_s: float
    incarnation: int
    killed: bool = False


class Healing:
    """`step` looks at the journal and does what is due; it never waits."""

    def __init__(
        self,
        store: Store,
        host: Host,
        entries: Mapping[str, JobEntry],
        allocations: Allocations,
        journal: JournalWriter,
        machines: Machines,
    ) -> None:
        self._machines = machines
        self._past: dict[str, list[Past]] = defaultdict(list)
        self._store, self._host, self._journal = store, host, journal
        self._entries, self._allocations = entries, allocations
        self._health_events = Search(store.cluster_events, ("node.health",))
        self._repairs: dict[str, Repair] = {}
        # what is asked for of nodes that are not the cluster's own, and since when
        self._elsewhere: dict[str, tuple[float, Mapping[str, Any]]] = {}
        # newest of every node: its action, its fault, its incident, and when that was read
        self._newest: dict[str, tuple[str, str, str, float]] = {}
        self._reasons: dict[str, str] = {}  # of schedulers' nodes, as far as they have been read
        self._look_s = 0.0
        self._begun = False  # what stood in the journal before has been read
        self._agent: subprocess.Popen[bytes] | None = None
        self._agent_s = 0.0

    def step(self, now_s: float) -> None:
        self._keep_agent(now_s)
        if now_s >= self._look_s:
            told = self._health_events.poll(READ_S)
            if told is None:
                return  # what was asked for last is not known yet
            self._look_s = now_s + LOOK_S
            for event in {str(event.data["node"]): event for event in told}.values():
                self._on_request(event, now_s)
            self._begun = True
            self._remember(told, now_s)
            self._read_reasons()
            self._read_records(now_s)
        for name, repair in list(self._repairs.items()):
            self._advance(self._host.nodes[name], repair, now_s)
        self._elsewhere = {name: one for name, one in self._elsewhere.items() if now_s - one[0] < HOLD_S}
        for name, (_, data) in self._elsewhere.items():
            for entry in self._entries.values():
                if entry.elsewhere and not entry.ended and name in self._allocations.nodes(entry.job.id):
                    self._tell(entry, name, str(data["fault"]), str(data["reason"]))

    def _remember(self, told: list[Event], now_s: float) -> None:
        """Nodes that are repaired again and again are avoided where there are others."""
        for event in told:
            data = event.data
            name, action, fault = (str(data[key]) for key in ("node", "action", "fault"))
            self._newest[name] = action, fault, str(data.get("incident", "")), now_s
            if data["action"] in ("reboot", "replace") and data["recovery"] == "Automatic":
                self._past[str(data["node"])].append(Past(str(data["action"]), str(data["fault"]), event.time_s))
        decision = avoid(self._past, time.time())
        if set(decision.value) != set(self._machines.avoided):
            value = {"avoid": list(decision.value)}
            self._journal.write("decision.made", {"policy": "healing", "value": value, "reason": decision.reason})
        self._machines.avoided = self._allocations.avoided = decision.value

    def _read_reasons(self) -> None:
        """Somebody may have written at a scheduler's node what the node needs: exactly, or nearly."""
        draining = self._allocations.draining()
        self._reasons = {node: reason for node, reason in self._reasons.items() if node in draining}
        for node, (title, reason) in draining.items():
            if self._reasons.get(node) == reason:
                continue
            self._reasons[node] = reason
            try:
                action = reason_action(reason)
            except SpecError as error:
                self._journal.write("warning.raised", {"text": f"{node}: {error}"})
                continue
            if action is not None and (node not in self._newest or self._newest[node][0] != action):
                check.tell(self._store, node, action, BY_HAND, f"{title}'s reason says {reason}")

    def _read_records(self, now_s: float) -> None:
        """What health agents show at a scheduler's nodes is journaled here, so that jobs leave with the reason."""
        for name, (node, asked_s) in self._allocations.watched().items():
            record = node.health
            assert record is not None
            action, fault, incident, heard_s = self._newest.get(name, ("", "", "", -1.0))
            if asked_s <= heard_s or (node.drained and not record.fences):
                continue  # it was asked before that was journaled, or others have taken it out of service
            if record.fences and not node.drained:
                record = HealthRecord("watch", reason=f"{name} was returned to service", devices=record.devices)
            if record.fences:  # jobs are asked to leave for as long as it is out of service
                self._elsewhere[name] = now_s, {"fault": record.fault, "reason": record.reason}
            elif record.action == "watch":
                self._elsewhere.pop(name, None)
            if (action, fault) == (record.action, record.fault):
                continue
            self._newest[name] = record.action, record.fault, incident, time.monotonic()
            if record.action == "watch" and incident:
                self._end_incident(name, incident, fault, record.reason)
            looked = check.NodeCheck([*record.causes], record.devices, record.boot)
            extra = {"recovery": record.recovery, "devices": record.devices}
            for kind, data in check.statements(name, *record.gist[:2], record.reason, looked, "", extra):
                self._journal.write(kind, data)

    def _end_incident(self, name: str, incident: str, fault: str, reason: str) -> None:
        stage = {"incident": incident, "cause": fault, "node": name, "rank": None, "rung": None}
        self._journal.write("incident.stage", stage | {"stage": "repaired", "text": reason})
        self._journal.write("incident.stage", stage | {"stage": "resumed", "text": f"{name} is in service"})

    def close(self) -> None:
        """End the agent; the next supervisor starts another."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()

    # -- the agent ---------------------------------------------------------------------------------------------

    def _keep_agent(self, now_s: float) -> None:
        if self._agent is not None and self._agent.poll() is not None:
            self._agent, self._agent_s = None, now_s + AGENT_PAUSE_S
        ready = all(node.state == "idle" for node in self._host.nodes.values())
        if self._agent is None and self._host.nodes and ready and now_s >= self._agent_s:
            self._agent = self._start_agent()

    def _start_agent(self) -> subprocess.Popen[bytes]:
        log = open_log(self._store.cluster / "logs", "health")
        names = [word for name in self._host.nodes for word in ("--node", name)]
        command = [sys.executable, "-m", AGENT, "--store", str(self._store.root), "--local", *names]
        try:
            return subprocess.Popen(
                [*command, "--parent", str(os.getpid())], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        finally:
            os.close(log)

    # -- remedies ----------------------------------------------------------------------------------------------

    def _on_request(self, event: Event, now_s: float) -> None:
        data = event.data
        name, action = str(data["node"]), str(data["action"])
        if action == "watch" or (data["recovery"] != "Automatic" and data["fault"] != BY_HAND):
            self._elsewhere.pop(name, None)
            self._repairs.pop(name, None)
            self._forget(name)
            if name in self._host.nodes:
                self._host.nodes[name].drained = ""
        elif name not in self._host.nodes:
            if self._begun or time.time() - event.time_s < NEWS_S:  # that node's clock may be wrong
                self._elsewhere[name] = (now_s, data)
        elif name not in self._repairs or self._repairs[name].action != action:
            node = self._host.nodes[name]
            node.drained = f"{data['fault'] or action}: {data['reason']}"
            incident = str(data.get("incident", ""))
            self._repairs[name] = Repair(action, str(data["fault"]), incident, now_s, node.incarnation)
            self._stage(name, self._repairs[name], "fenced", f"{name} gets no new work, and jobs leave it")

    def _advance(self, node: HostNode, repair: Repair, now_s: float) -> None:
        for job_id in node.jobs:
            if (entry := self._entries.get(job_id)) is not None and not entry.ended:
                self._tell(entry, node.name, repair.fault, node.drained)
        if repair.action == "drain":
            return
        empty = not node.jobs or now_s - repair.began_s > LEAVE_S
        if not repair.killed and empty and node.state == "idle":
            repair.killed, repair.incarnation = True, node.incarnation
            with suppress(OSError):
                stand_in(self._store, node.name).unlink(missing_ok=True)
            self._host.signal_node(node.name, signal.SIGKILL)
        elif repair.killed and node.state == "idle" and node.incarnation > repair.incarnation:
            self._finish(node, repair, now_s)

    def _finish(self, node: HostNode, repair: Repair, now_s: float) -> None:
        del self._repairs[node.name]
        took = f"after {now_s - repair.began_s:.1f} s"
        if repair.action == "reboot":
            self._stage(node.name, repair, "repaired", f"{node.name} was started anew {took}")
        else:
            self._stage(node.name, repair, "replaced", f"another {node.name} took its place {took}")
        self._stage(node.name, repair, "rejoined", f"{node.name} answers")
        self._stage(node.name, repair, "resumed", f"{node.name} is in service")
        reason = f"it was {'rebooted' if repair.action == 'reboot' else 'replaced'} because of {repair.fault}"
        record = {"node": node.name, "action": "watch", "fault": "", "reason": reason, "labels": labels("watch", ())}
        self._journal.write(
            "node.health", record | {"recovery": "Automatic", "devices": {}, "boot": "", "incident": ""}
        )
        node.drained = ""
        self._forget(node.name)

    def _forget(self, node: str) -> None:
        """It is in service again: jobs that are there are told if it goes once more."""
        for entry in self._entries.values():
            entry.forget_drain(node)

    def _tell(self, entry: JobEntry, node: str, fault: str, reason: str) -> None:
        # what was still being started there was not known to the job when it was told
        joined_s = self._allocations.joined_s(entry.job.id, node) if entry.elsewhere else -math.inf
        if entry.started and not entry.knows_drain(node, joined_s):
            entry.tell_drain(node, fault or "unhealthy node", reason)

    def _stage(self, node: str, repair: Repair, stage: str, text: str) -> None:
        if repair.incident:
            data = {"incident": repair.incident, "stage": stage, "cause": repair.fault, "node": node, "text": text}
            self._journal.write("incident.stage", data | {"rank": None, "rung": None})
