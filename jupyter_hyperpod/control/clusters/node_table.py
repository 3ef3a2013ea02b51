"""The table of nodes: those of the cluster here, and those of schedulers that jobs use or agents report."""

from __future__ import annotations

import time

from ...core.health import SCHEDULABLE, STATUS
from ...core.views import View
from ..report import ago, state_cell
from ..text_tables import Cell, Table

HEADERS = ("NODE", "STATE", "ROLE", ">SLOTS", "JOBS", ">PID", ">RESTARTED", "SINCE", "HEALTH", "REASON")
NOTHING = Cell("-", "quiet")


def nodes_table(cluster: View) -> Table:
    """Return the table of a cluster's nodes."""
    now_s, health = time.time(), cluster["health"]
    rows = [_row(node, health.get(node["node"]), now_s) for node in cluster["nodes"]]
    used = {place["node"]: place for place in cluster.get("elsewhere", ())}
    here = {node["node"] for node in cluster["nodes"]}
    others = [name for name in dict.fromkeys([*used, *health]) if name not in here]
    rows += [_row_elsewhere(name, used.get(name), health.get(name)) for name in others]
    return Table(HEADERS, rows, "no nodes; `jupyter hyperpod cluster start` starts them")


def _row(node: View, health: View | None, now_s: float) -> list[Cell]:
    restarted = max(0, (node["incarnation"] or 1) - 1)
    return [
        Cell(node["node"]),
        state_cell(node["state"]),
        Cell("spare" if node["spare"] else "worker", "quiet"),
        Cell(f"{node['used']}/{node['slots']}"),
        Cell(", ".join(node["jobs"]) or "-"),
        Cell(str(node["pid"] or "-"), "quiet"),
        Cell(str(restarted), "warn" if restarted else "quiet"),
        Cell(ago(node["since_s"], now_s), "quiet"),
        _health_cell(health),
        Cell(node["reason"]),
    ]


def _row_elsewhere(name: str, used: View | None, health: View | None) -> list[Cell]:
    """A node of a scheduler: ``used`` by jobs, or with a ``health`` that an agent reports, or both."""
    role = Cell("spare" if used["spare"] else "worker", "quiet") if used else NOTHING
    jobs = Cell(", ".join(used["jobs"])) if used else NOTHING
    reason = health["reason"] if health else f"a node of {used['title']}" if used else ""
    before = [Cell(name), Cell("elsewhere", "quiet"), role, NOTHING, jobs]
    return [*before, NOTHING, NOTHING, NOTHING, _health_cell(health), Cell(reason)]


def _health_cell(health: View | None) -> Cell:
    """A node's health in HyperPod's terms."""
    if health is None:
        return NOTHING
    status = health["labels"].get(STATUS, SCHEDULABLE)
    return Cell(status, "good" if status == SCHEDULABLE else "bad")
