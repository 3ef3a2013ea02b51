"""Decides what to do about a faulty node: watch, drain, reboot or replace it. Time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.health import SEVERITIES, Finding
from .decision import Decision

WINDOW_S = 86_400.0
REBOOTS = 2  # per fault within the window; after that another reboot is not expected to help
OFFENCES = 3  # remedies within the window; after that a node is avoided where there is another
_ACTION = {"monitor": "watch", "drain": "drain", "reset": "reboot", "reboot": "reboot", "isolate": "replace"}


@dataclass(frozen=True, slots=True)
class Past:
    """A remedy that a node has had."""

    action: str
    fault: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """``action`` is one of `core.health.ACTIONS`; with NodeRecovery None the node is labelled and nothing is done."""

    action: str
    fault: str = ""
    automatic: bool = True


def heal(
    findings: Sequence[Finding],
    history: Iterable[Past],
    now_s: float,
    recovery: str = "Automatic",
    under_repair: int = 0,
    nodes: int = 0,
) -> Decision[Remedy]:
    """What to do about the worst of a node's failed findings.

    ``under_repair``: how many other nodes of ``nodes`` are being rebooted or replaced now; 0 nodes means unknown.
    """
    wrong = [finding for finding in findings if finding.failed]
    if not wrong:
        return Decision(Remedy("watch"), "no probe has found anything wrong")
    worst = max(wrong, key=lambda finding: SEVERITIES.index(finding.severity))
    action, why = _ACTION[worst.severity], f"{worst.fault}: {worst.text}"
    if action == "watch":
        return Decision(Remedy("watch", worst.fault), f"{why}; the node is not to blame or goes on well: no remedy")
    if action == "reboot":
        tried = sum(
            past.action == "reboot" and past.fault == worst.fault and now_s - past.time_s <= WINDOW_S
            for past in history
        )
        if tried >= REBOOTS:
            action, why = "replace", f"{why}; {tried} reboots within {WINDOW_S / 3600:g} h have not mended it"
    if recovery != "Automatic":
        return Decision(Remedy(action, worst.fault, False), f"{why}; NodeRecovery is None: labelled only")
    limit = max(1, nodes // 3)
    if action in ("reboot", "replace") and nodes and under_repair >= limit:
        busy = f"{under_repair} of {nodes} nodes are being repaired, {limit} may be at a time"
        return Decision(Remedy("drain", worst.fault), f"{why}; {busy}: drained until then")
    sentence = {
        "drain": "it gets no new work until that is over",
        "reboot": "a reboot mends that",
        "replace": "no reboot mends that: another node takes its place",
    }
    return Decision(Remedy(action, worst.fault), f"{why}; {sentence[action]}")


def avoid(histories: Mapping[str, Iterable[Past]], now_s: float) -> Decision[tuple[str, ...]]:
    """Nodes with so many recent remedies that others are preferred."""
    counts = {
        node: sum(past.action in ("reboot", "replace") and now_s - past.time_s <= WINDOW_S for past in history)
        for node, history in histories.items()
    }
    bad = tuple(sorted(node for node, count in counts.items() if count >= OFFENCES))
    if not bad:
        return Decision((), f"no node had {OFFENCES} remedies within {WINDOW_S / 3600:g} h")
    told = ", ".join(f"{node} ({counts[node]} remedies)" for node in bad)
    return Decision(bad, f"avoided, as repeat offenders of the last {WINDOW_S / 3600:g} h: {told}")
