"""The logic of the health agent: turns findings into labels, decisions and remedies for the nodes of one machine.

It writes to the cluster's journal. ``hands``, if given, carries remedies out. The supervisor of a local cluster instead
reads the remedies for its nodes in the journal.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ..core.errors import ClusterError
from ..core.events import Event
from ..core.health import ACTIONS, BY_HAND, Finding, labels, passed
from ..policy.decision import Decision
from ..policy.healing import Past, Remedy, heal
from ..system.processes import start_ticks
from . import kernel
from .probes import HOST, Probe, ProbeRoot, take

Say = Callable[[str, Mapping[str, Any]], object]
RESULTS_S = 1.0
ASK_S, SELDOM_S = 5.0, 40.0  # a node is out of service for minutes or days, and many may ask at once
_DONE = {"drain": "drained", "reboot": "rebooted", "replace": "replaced"}
_STRONG = ("reboot", "replace")  # actions that remain when a probe passes again


class Hands(Protocol):
    """Carries remedies out."""

    def carry_out(self, node: str, action: str, why: str) -> str:
        """Carry the action out and return what was done. Raises ClusterError."""

    def resume(self, node: str) -> None:
        """Return a drained node to service. Raises ClusterError."""

    def serves(self, node: str) -> bool:
        """Whether the node gets new work. Raises ClusterError."""


@dataclass
class NodeState:
    """The health of one node."""

    name: str
    shared: bool = False  # other nodes have the same kernel log
    findings: dict[str, list[Finding]] = field(default_factory=dict)
    # from the kernel's log, kept until remedied; each with the time it was read (seconds, Unix)
    active: dict[str, tuple[float, Finding]] = field(default_factory=dict)
    past: list[Past] = field(default_factory=list)
    action: str = "watch"
    fault: str = ""
    incident: str = ""
    incidents: int = 0
    told: bool = False
    automatic: bool = False  # the requested action is carried out


class Monitor:
    """``logs``: node -> its kernel log, "" for this machine's; ``recovery`` is called at every decision.

    ``boot_id`` changes with every boot of the machine (default: `boot`).
    """

    def __init__(
        self,
        logs: Mapping[str, str],
        place: ProbeRoot,
        say: Say,
        recovery: Callable[[], str],
        hands: Hands | None = None,
        probes: Sequence[Probe] = HOST,
        boot_id: str | None = None,
    ) -> None:
        readers = Counter(logs.values())
        self._tails = {path: kernel.Tail(path) for path in readers}
        self._logs = logs
        self.nodes = {name: NodeState(name, readers[path] > 1) for name, path in logs.items()}
        self.devices: dict[str, Any] = {}
        self._place, self._say, self._recovery, self._hands, self._probes = place, say, recovery, hands, probes
        self._boot = boot() if boot_id is None else boot_id
        self._ask_in(ASK_S)
        self._results: queue.SimpleQueue[tuple[list[Finding], dict[str, Any]]] = queue.SimpleQueue()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._probe, name="probes", daemon=True)

    def recall(self, events: Sequence[Event]) -> None:
        """Restore the state of these nodes from journaled events, in their order."""
        for event in events:
            node = self.nodes.get(str(event.data.get("node")))
            if node is None:
                continue
            if event.kind == "incident.stage":
                number = str(event.data["incident"]).rpartition("-")[2]
                node.incidents = max(node.incidents, int(number) if number.isdecimal() else 0)
            elif event.kind == "node.health":
                self._recall(node, event)

    def _recall(self, node: NodeState, event: Event) -> None:
        action, fault = str(event.data["action"]), str(event.data["fault"])
        if action != node.action and action in _STRONG:
            node.past.append(Past(action, fault, event.time_s))
        anew = bool(self._boot and event.data["boot"] and event.data["boot"] != self._boot)
        node.action, node.fault = ("watch", "") if anew and action in _STRONG else (action, fault)
        node.incident, node.automatic = str(event.data.get("incident", "")), event.data["recovery"] == "Automatic"
        node.told = anew and action in _STRONG

    def retain(self, name: str, causes: Sequence[Finding]) -> None:
        """Findings from before this process that are in the way until they are remedied: no probe finds them again."""
        for finding in causes:
            if finding.probe == kernel.PROBE:
                self.nodes[name].active[f"{finding.fault} {finding.device}"] = (time.time(), finding)

    @property
    def unread(self) -> list[str]:
        """Nodes whose kernel's log cannot be read, or is not there yet."""
        return [name for name, path in self._logs.items() if not self._tails[path].is_open]

    def start(self) -> None:
        """Start probing in a thread, so that a probe that hangs does not keep this thread from the kernel's log."""
        for node in self.nodes.values():
            if node.told:  # a reboot or replacement was requested, and this is another boot
                self._back(node, "the node is back from a reboot")
            node.told = False
        self._ask()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a probe that hangs is abandoned."""
        self._ends.set()
        self._thread.join(RESULTS_S)
        for tail in self._tails.values():
            tail.close()

    def tick(self) -> None:
        """Handle new lines of the kernel's logs and the probes' new findings."""
        heard = {path: [kernel.parse(line) for line in tail.lines()] for path, tail in self._tails.items()}
        for name, path in self._logs.items():
            for finding in heard[path]:
                if finding is not None:
                    self.hear(name, finding)
        with suppress(queue.Empty):
            while True:
                self._probed(*self._results.get_nowait())
        if time.monotonic() >= self._ask_s:
            self._ask_in(min(1.5 * self._pause_s, SELDOM_S))
            self._ask()

    def _ask_in(self, pause_s: float) -> None:
        self._pause_s, self._ask_s = pause_s, time.monotonic() + pause_s

    def _ask(self) -> None:
        """Check whether a person has returned a drained node to service."""
        for node in self.nodes.values():
            taken_out = node.action in _STRONG or node.fault == BY_HAND
            if self._hands is not None and node.automatic and taken_out:
                with suppress(ClusterError):
                    if self._hands.serves(node.name):
                        self._back(node, "it was returned to service")

    # -- findings ----------------------------------------------------------------------------------------------

    def hear(self, name: str, finding: Finding) -> None:
        """Handle a finding from the kernel's log of a node."""
        node = self.nodes[name]
        if node.shared and finding.severity != "monitor":
            text = f"{finding.text}; all nodes of this cluster share that machine"
            finding = replace(finding, severity="monitor", text=text)
        node.findings[finding.probe] = [finding]
        self._say("node.findings", {"nodes": [name], "findings": [finding.to_json()]})
        if finding.severity == "monitor":
            decision = heal([finding], (), time.time())
            value = {"node": name, "action": decision.value.action, "fault": finding.fault}
            self._decided(value, decision.reason)
            return
        node.active[f"{finding.fault} {finding.device}"] = (time.time(), finding)
        self._decide(node)

    def _probed(self, findings: list[Finding], devices: dict[str, Any]) -> None:
        """Handle the findings of a round of probes; all nodes of this machine share them."""
        self.devices = devices or self.devices
        found: dict[str, list[Finding]] = {finding.probe: [] for finding in findings}
        for finding in findings:
            found[finding.probe].append(finding)
        before = next(iter(self.nodes.values())).findings
        news = [probe for probe in sorted(found) if _gist(before.get(probe, ())) != _gist(found[probe])]
        changed = [finding for probe in news for finding in found[probe]]
        for node in self.nodes.values():
            node.findings |= found
        if changed:
            self._say("node.findings", {"nodes": list(self.nodes), "findings": [f.to_json() for f in changed]})
        for node in self.nodes.values():
            if not node.told:
                self._tell(node, "the health agent watches this node")
            if any(finding.failed for finding in changed) or node.action == "drain":
                self._decide(node)

    def _decide(self, node: NodeState) -> None:
        found = [finding for several in node.findings.values() for finding in several if finding.failed]
        found += [finding for _, finding in node.active.values() if finding not in found]
        others = [other for other in self.nodes.values() if other is not node]
        busy = sum(other.automatic and other.action in _STRONG for other in others)
        known = len(self.nodes) if others else 0
        decision = heal(found, node.past, time.time(), self._recovery(), busy, known)
        weaker = ACTIONS.index(decision.value.action) < ACTIONS.index(node.action)
        if decision.value.action == node.action or (weaker and (node.action in _STRONG or node.fault == BY_HAND)):
            return
        self._change(node, decision, found)

    def _change(self, node: NodeState, decision: Decision[Remedy], found: Sequence[Finding]) -> None:
        remedy = decision.value
        value = {"node": node.name, "action": remedy.action, "fault": remedy.fault, "automatic": remedy.automatic}
        if remedy.action == "watch":
            self._decided(value, decision.reason)
            self._back(node, "what was wrong is over")
            return
        fresh = node.action == "watch"
        node.action, node.fault, node.automatic = remedy.action, remedy.fault, remedy.automatic
        if fresh:
            node.incidents += 1
            node.incident = f"{node.name}-{node.incidents}"
            text = next((finding.text for finding in found if finding.fault == remedy.fault), remedy.fault)
            self._stage(node, "detected", text)
        self._decided(value, decision.reason)
        self._stage(node, "diagnosed", decision.reason)
        if remedy.automatic and remedy.action in _STRONG:
            node.past.append(Past(remedy.action, remedy.fault, time.time()))
        if remedy.automatic and self._hands is not None:
            self._carry_out(node, remedy)
            self._ask_in(ASK_S)
        # last: a job may leave the node because of this, and this process may end with the job
        self._tell(node, decision.reason, found, remedy.automatic)

    def _carry_out(self, node: NodeState, remedy: Remedy) -> None:
        assert self._hands is not None
        try:
            done = self._hands.carry_out(node.name, remedy.action, remedy.fault)
        except ClusterError as error:
            self._say("warning.raised", {"text": f"{node.name} should be {_DONE[remedy.action]}, but: {error}"})
            return
        self._stage(node, "fenced", f"no new work goes to {node.name}: {done}")

    def _back(self, node: NodeState, text: str) -> None:
        """Return the node to service."""
        if self._hands is not None:
            try:
                self._hands.resume(node.name)
            except ClusterError as error:
                self._say("warning.raised", {"text": f"{node.name} cannot be returned to service: {error}"})
        if node.incident:
            self._stage(node, "repaired", text)
            self._stage(node, "resumed", f"{node.name} is in service")
        self.restored(node.name)
        self._tell(node, text)

    def adopt(self, name: str, action: str, fault: str) -> None:
        """Take over a remedy that another process has requested."""
        node = self.nodes[name]
        node.action, node.fault = action, fault

    def restored(self, name: str, at_s: float = math.inf) -> None:
        """A node was repaired or replaced at this time (seconds, Unix): earlier findings are over."""
        node = self.nodes[name]
        node.action, node.fault, node.incident = "watch", "", ""
        node.active = {key: one for key, one in node.active.items() if one[0] > at_s}
        if node.active:
            self._decide(node)
            return
        if node.findings.pop(kernel.PROBE, None):
            calm = passed(kernel.PROBE, "nothing was logged since the node is back")
            self._say("node.findings", {"nodes": [name], "findings": [calm.to_json()]})

    # -- saying ------------------------------------------------------------------------------------------------

    def _tell(self, node: NodeState, reason: str, found: Sequence[Finding] = (), automatic: bool = True) -> None:
        node.told = True
        self._say(
            "node.health",
            {
                "node": node.name,
                "action": node.action,
                "fault": node.fault,
                "reason": reason,
                "labels": labels(node.action, found),
                "recovery": "Automatic" if automatic else "None",
                "devices": self.devices,
                "boot": self._boot,
                "incident": node.incident,
            },
        )

    def _decided(self, value: Mapping[str, Any], reason: str) -> None:
        self._say("decision.made", {"policy": "healing", "value": value, "reason": reason})

    def _stage(self, node: NodeState, stage: str, text: str) -> None:
        data = {"incident": node.incident, "stage": stage, "cause": node.fault, "node": node.name}
        self._say("incident.stage", data | {"rank": None, "rung": None, "text": text})

    # -- the thread --------------------------------------------------------------------------------------------

    def _probe(self) -> None:
        due = dict.fromkeys(self._probes, 0.0)
        counted_s = 0.0
        while not self._ends.is_set():
            now_s = time.monotonic()
            ready = [probe for probe, at_s in due.items() if at_s <= now_s]
            found = [finding for probe in ready for finding in probe.run(self._place)]
            devices: dict[str, Any] = {}
            if now_s >= counted_s:
                counted_s = now_s + 60.0
                devices = asdict(take(self._place))
            if found or devices:
                self._results.put((found, devices))
            due.update({probe: now_s + probe.every_s for probe in ready})
            self._ends.wait(max(0.1, min(due.values(), default=now_s + 1.0) - time.monotonic()))


def boot() -> str:
    """An id that changes with every boot of this machine, or of the container that acts as one."""
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()[:8]
        if (started := start_ticks(1)) is not None:
            return f"{boot_id}-{started}-{os.uname().nodename}"
    return ""


def _gist(found: Sequence[Finding]) -> set[tuple[str, str, str, str]]:
    """The findings without their texts: where it is equal, no more than a measured value has changed."""
    return {(finding.outcome, finding.severity, finding.fault, finding.device) for finding in found}
