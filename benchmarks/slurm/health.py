"""A line in a node's kernel log: how long until the node is labelled, drained and a remedy asked for, on a real SLURM.

Also what the health agent costs while nothing happens. Needs root and SLURM; see `tests.support.slurm`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_hyperpod.backends.slurm import remedies
from jupyter_hyperpod.backends.types import NodeInfo
from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.storage.store import Store
from tests.support.slurm import CONTROLLER, Testbed, missing

LOG = "/run/kmsg"
XID = "NVRM: Xid (PCI:0000:00:1e.0): {}, pid=1, name=python3, text"
SERVED_S = 90.0
NOTHING_S = 2.0
PENDING = {74: "UnschedulablePendingReplacement", 73: "UnschedulablePendingReboot"}


def run(runs: int = 10, idle_s: float = 20.0) -> dict[str, Any]:
    """``runs`` Xids that replace, as many reboots as there are nodes, and ``idle_s`` seconds of an idle agent."""
    if reason := missing():
        return report("health", [not_run("ours", "SLURM", reason)], [])
    with Testbed(4) as bed:
        store = Store(bed.directory / "store").prepare()
        bench = _Bench(bed, store)
        return bench.run(runs, idle_s)


class _Bench:
    def __init__(self, bed: Testbed, store: Store) -> None:
        self.bed, self.store = bed, store
        for node in bed.nodes:
            self._agent(node)

    def _agent(self, node: str) -> None:
        module = [sys.executable, "-m", "jupyter_hyperpod.health.agent", "--store", str(self.store.root)]
        self.bed.start(node, [*module, "--node", node, "--backend", "slurm", "--kernel-log", LOG])
        self._until(lambda: self.health(node).get("action") == "watch", "an agent watches")

    def run(self, runs: int, idle_s: float) -> dict[str, Any]:
        labelled, drained = [], []
        for at in range(runs):
            node = self.bed.nodes[at % len(self.bed.nodes)]
            progress(f"Xid 74 on {node} ({at + 1} of {runs})")
            one, two = self._replaced(node)
            labelled.append(one)
            drained.append(two)
        nothing = sum(self._nothing(node) for node in self.bed.nodes)
        served = [self._rebooted(node) for node in self.bed.nodes]
        progress(f"the agents idle for {idle_s:g} s")
        share = self._idle(idle_s)
        rows = [
            row("ours", "Xid 74", "line to label", "s", labelled),
            row("ours", "Xid 74", "line to drained, replacement asked for", "s", drained),
            row("ours", "Xid 31", "remedies", "nodes", [nothing]),
            row("ours", "Xid 73", "line to rebooted and idle again, the boot included", "s", served),
            row("ours", "nothing", "CPU time of one health agent", "% of a core", share),
        ]
        bars = [
            bar("Xid 74: labelled, drained and replacement asked for (s, slowest)", max(drained), 3.0),
            bar("Xid 31: remedies", float(nothing), 0.0),
            bar(
                "Xid 73: rebooted and back in service (nodes)", float(len(served)), at_least=float(len(self.bed.nodes))
            ),
        ]
        return report("health", rows, bars)

    def _replaced(self, node: str) -> tuple[float, float]:
        began_s = self._log(node, 74)
        self._until(lambda: self._info(node).reason == "Action:Replace" and self._info(node).out, "SLURM was asked")
        drained_s = time.time() - began_s
        self._until(lambda: PENDING[74] in self.health(node)["labels"].values(), "it is labelled")
        labelled_s = float(self.health(node)["since_s"]) - began_s
        self.bed.run(CONTROLLER, "scontrol", "update", f"nodename={node}", "state=resume")
        self._until(lambda: self.health(node)["action"] == "watch", "the agent knows that it is back")
        return labelled_s, max(drained_s, labelled_s)

    def _nothing(self, node: str) -> int:
        self._log(node, 31)
        self._until(lambda: "NvidiaXid31" in {f["fault"] for f in self.health(node)["findings"]}, "Xid 31 is told")
        time.sleep(NOTHING_S)
        return int(self._info(node).out or self.health(node)["action"] != "watch")

    def _rebooted(self, node: str) -> float:
        progress(f"Xid 73 on {node}")
        before = self.bed.pid(node)
        began_s = self._log(node, 73)

        def back() -> bool:
            try:
                return self.bed.states().get(node) == "idle" and self.bed.pid(node) != before
            except ClusterError:  # it is switched off just now
                return False

        self._until(back, "it was rebooted", SERVED_S)
        took_s = time.time() - began_s
        self._agent(node)
        return took_s

    def _idle(self, seconds: float) -> list[float]:
        mark = f"{sys.executable} -m jupyter_hyperpod.health.agent --store {self.store.root} ".encode()
        agents = [pid for pid in _pids() if _command(pid).startswith(mark)]
        before = {pid: _cpu_s(pid) for pid in agents}
        time.sleep(seconds)
        return [100 * (_cpu_s(pid) - before[pid]) / seconds for pid in agents]

    def _log(self, node: str, xid: int) -> float:
        began_s = time.time()
        self.bed.run(node, "sh", "-c", f"echo '{XID.format(xid)}' >> {LOG}")
        return began_s

    def health(self, node: str) -> View:
        """What the cluster's journal tells of a node."""
        found: View = cluster.status(self.store)["health"].get(node, {})
        return found

    def _info(self, node: str) -> NodeInfo:
        text = self.bed.run(CONTROLLER, "scontrol", "show", "node", "--oneliner", node).stdout
        return next(remedies.nodes(text))

    def _until(self, holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_s:g} s: {what}; nodes: {self.bed.states()}")
            time.sleep(0.02)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))
