"""Checks one node on request: runs the probes, on demand deep checks, and journals the result.

python -m jupyter_hyperpod.health.check [--store DIR] [--deep]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import HyperpodError
from ..core.health import ACTIONS, BY_HAND, IN_PROGRESS, Finding, from_json, labels
from ..core.views import View, apply, new_cluster_view
from ..policy.healing import Past, heal
from ..storage.journal import forget_oldest, read_events
from ..storage.journal_writer import JournalWriter
from ..storage.store import Store
from . import deep as deep_checks
from .agent import recovery
from .monitor import boot
from .probes import HOST, ProbeRoot, take

WRITER = "check"
JOURNALS_KEPT = 32
CarryOut = Callable[[str, str, str], object]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The findings on a machine, its ``devices``, and the id of its ``boot``, "" where unknown."""

    findings: list[Finding]
    devices: Mapping[str, Any]
    boot: str

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> NodeCheck:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError."""
        return cls([from_json(finding) for finding in record["findings"]], record["devices"], str(record["boot"]))


UNSEEN = NodeCheck([], {}, "")


def look(store: Store | None, deep: bool, level: int, say: Callable[[Finding], None]) -> NodeCheck:
    """Run every probe and, if wanted, the deep checks; ``say`` gets each finding."""
    place = ProbeRoot(store)
    probed = (finding for probe in HOST for finding in probe.run(place))
    found = []
    for finding in chain(probed, deep_checks.check(place, level) if deep else ()):
        say(finding)
        found.append(finding)
    return NodeCheck(found, asdict(take(place)), boot())


def known(store: Store, node: str) -> View:
    """A node's health according to the cluster's journal; defaults where the journal has nothing."""
    view = new_cluster_view()
    for event in read_events(store.cluster_events):
        apply(view, event)
    unknown: View = {"action": "watch", "fault": "", "remedies": [], "devices": {}, "labels": {}}
    health: View = view["health"].get(node, unknown)
    return health


def tell(
    store: Store, node: str, action: str, fault: str, reason: str, looked: NodeCheck = UNSEEN, deep: str = ""
) -> None:
    """Journal the action that a person, or a check, wants for a node; an action stronger than "watch" opens an
    incident.

    ``deep``: the label of a deep check. Raises StoreError.
    """
    name = f"{WRITER}-{node}"
    forget_oldest(store.prepare().cluster_events, JOURNALS_KEPT, f"{name}.")  # each call writes a file of its own
    writer = JournalWriter(store.cluster_events, name)
    record = {"recovery": recovery(store), "devices": looked.devices or known(store, node)["devices"]}
    for kind, data in statements(node, action, fault, reason, looked, deep, record):
        writer.write(kind, data)
    writer.close()


def statements(
    node: str, action: str, fault: str, reason: str, looked: NodeCheck, deep: str, record: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of such an action, in their order; ``record``: its recovery and the devices of the node."""
    found = looked.findings
    incident = f"{node}-{time.time_ns() // 1_000_000}" if action != "watch" else ""
    if found:
        yield "node.findings", {"nodes": [node], "findings": [finding.to_json() for finding in found]}
    value = {"node": node, "action": action, "fault": fault}
    yield "decision.made", {"policy": "healing", "value": value, "reason": reason}
    if incident:
        stage = {"incident": incident, "cause": fault, "node": node, "rank": None, "rung": None}
        detected = next((one.text for one in found if one.fault == fault), reason)
        since = {"since_s": time.time()} if fault == BY_HAND else {}  # a probe does not know when the fault began
        yield "incident.stage", stage | {"stage": "detected", "text": detected} | since
        yield "incident.stage", stage | {"stage": "diagnosed", "text": reason}
    told = {"reason": reason, "labels": labels(action, found, deep), "boot": looked.boot, "incident": incident}
    yield "node.health", value | told | dict(record)


def judge(
    store: Store, node: str, looked: NodeCheck, deep: bool, carry_out: CarryOut | None = None, recovers: str = ""
) -> Mapping[str, Any]:
    """Decide about the findings, journal the decision, and return ``{"action", "reason", "labels"}``.

    ``carry_out(node, action, fault)`` requests the remedy where no process reads the journal for it. ``recovers``:
    NodeRecovery, where it is not that of the store. Raises ClusterError.
    """
    before, found = known(store, node), looked.findings
    past = [Past(r["action"], r["fault"], r["time_s"]) for r in before["remedies"]]
    decision = heal(found, past, time.time(), recovers or recovery(store))
    action, fault = decision.value.action, decision.value.fault
    if ACTIONS.index(action) < ACTIONS.index(before["action"]):  # a stronger action is already under way
        action, fault = before["action"], before["fault"]
    failing = any(finding.failed and finding.severity != "monitor" for finding in found)
    state = "" if not deep else "Failed" if failing else "Passed"
    if carry_out is not None and action != "watch" and decision.value.automatic:
        carry_out(node, action, fault)  # before journaling: a refused remedy must not look as if it were under way
    if before["action"] == "watch" or action != before["action"]:  # what is under way is not requested twice
        tell(store, node, action, fault, decision.reason, looked, state)
    return {"action": action, "reason": decision.reason, "labels": labels(action, found, state)}


@contextmanager
def labelled(store: Store, node: str) -> Iterator[None]:
    """Label a node while its deep check is under way. An abandoned check leaves no label."""

    def say(reason: str, deep: str) -> None:
        if known(store, node)["action"] == "watch":
            tell(store, node, "watch", "", reason, deep=deep)

    say("a deep health check begins", IN_PROGRESS)
    try:
        yield
    except BaseException:
        say("a deep health check did not finish", "")
        raise


def main() -> int:
    """Entry point; the findings are JSON, on one line of standard output."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.health.check")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--level", type=int, default=2)
    options = parser.parse_args()
    try:
        looked = look(
            Store(options.store) if options.store else None, options.deep, options.level, lambda finding: None
        )
    except HyperpodError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(looked.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
