"""Findings about a node's health, and the labels that show them to tools and people.

Names of labels and their values are those of SageMaker HyperPod.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from .errors import SpecError

PREFIX = "sagemaker.amazonaws.com/"
IN_PROGRESS = "InProgress"  # of a deep check
STATUS, DEEP = f"{PREFIX}node-health-status", f"{PREFIX}deep-health-check-status"
TYPES, REASONS = f"{PREFIX}fault-types", f"{PREFIX}fault-reasons"
DETAILS = f"{PREFIX}fault-details"  # an annotation, JSON
SCHEDULABLE, UNSCHEDULABLE = "Schedulable", "Unschedulable"
PENDING_REPLACEMENT, PENDING_REBOOT = "UnschedulablePendingReplacement", "UnschedulablePendingReboot"
RECOVERIES = ("Automatic", "None")

# how a probe ended; a probe that could not run is skipped, never passed
OUTCOMES = ("pass", "fail", "skipped")
# the action that a failed probe calls for, mildest first; isolate: no restart repairs the fault
SEVERITIES = ("monitor", "drain", "reset", "reboot", "isolate")
ACTIONS = ("watch", "drain", "reboot", "replace")
BY_HAND = "ByHand"  # the fault of a node that a person takes out of service
# the reason at a scheduler's node that asks for an action; HyperPod silently ignores near misses
REASON_ACTIONS = {"Action:Reboot": "reboot", "Action:Replace": "replace"}
_LABELS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one probe. ``fault``: a short name without spaces; ``text``: a sentence; ``device``: where."""

    probe: str
    outcome: str
    text: str
    severity: str = "monitor"
    fault: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES or self.severity not in SEVERITIES:
            raise SpecError(f"finding {self.outcome}/{self.severity} is unknown; expected {OUTCOMES} and {SEVERITIES}")

    @property
    def failed(self) -> bool:
        return self.outcome == "fail"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def passed(probe: str, text: str) -> Finding:
    """The probe ran and found nothing wrong."""
    return Finding(probe, "pass", text)


def skipped(probe: str, why: str) -> Finding:
    """The probe could not run on this node."""
    return Finding(probe, "skipped", why)


def failed(probe: str, severity: str, fault: str, text: str, device: str = "") -> Finding:
    """The probe found something wrong."""
    return Finding(probe, "fail", text, severity, fault, device)


def labels(action: str, findings: Sequence[Finding], deep: str = "") -> dict[str, str]:
    """The labels and the annotation of a node that needs ``action`` because of failed ``findings``."""
    status = {
        "watch": SCHEDULABLE,
        "drain": UNSCHEDULABLE,
        "reboot": PENDING_REBOOT,
        "replace": PENDING_REPLACEMENT,
    }[action]
    wrong = [finding for finding in findings if finding.failed]
    found = {STATUS: status}
    if deep:
        found[DEEP] = deep
    if wrong:
        found[TYPES] = "_".join(dict.fromkeys(f.probe for f in wrong[-_LABELS_KEPT:]))
        found[REASONS] = "_".join(dict.fromkeys(f.fault for f in wrong[-_LABELS_KEPT:]))
        found[DETAILS] = json.dumps([f.to_json() for f in wrong[-_LABELS_KEPT:]], separators=(",", ":"))
    return found


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """What the health agent of a node has decided, where the node's scheduler keeps it.

    ``causes``: the findings that led to the action. ``findings``: the newest of every probe. ``past``: remedies, each
    with its action, its fault and its time (seconds, Unix).
    """

    action: str
    fault: str = ""
    reason: str = ""
    recovery: str = RECOVERIES[0]
    boot: str = ""
    causes: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    devices: Mapping[str, Any] = field(default_factory=dict)
    past: tuple[tuple[str, str, float], ...] = ()

    @property
    def fences(self) -> bool:
        """Whether the node gets no new work because of it; with NodeRecovery None it is labelled only."""
        return self.action != "watch" and self.recovery == RECOVERIES[0]

    @property
    def gist(self) -> tuple[str, str, str]:
        """Where it is equal, nothing has to be done at the node."""
        return self.action, self.fault, self.recovery

    def labels(self) -> dict[str, str]:
        """The labels and the annotation of the node."""
        return labels(self.action, self.causes)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> HealthRecord:
        """Inverse of `to_json`. Raises KeyError, TypeError, ValueError, AttributeError or SpecError."""
        if record["action"] not in ACTIONS or record["recovery"] not in RECOVERIES:
            raise ValueError(f"action {record['action']!r} or recovery {record['recovery']!r} is unknown")
        texts = {name: str(record[name]) for name in ("action", "fault", "reason", "recovery", "boot")}
        causes, findings = (tuple(from_json(one) for one in record[name]) for name in ("causes", "findings"))
        past = tuple((str(action), str(fault), float(time_s)) for action, fault, time_s in record["past"])
        return cls(**texts, causes=causes, findings=findings, devices=dict(record["devices"]), past=past)


class HealthBoard(Protocol):
    """Where the agent of one node shows its health, and finds again what it has shown. Every method waits for the
    scheduler, and raises ClusterError where that does not answer or refuses."""

    def read(self) -> HealthRecord | None:
        """What was shown last; None where nothing was."""

    def show(self, record: HealthRecord) -> None:
        """Show it at the node, and give the node no new work where the record says so."""

    def returned(self) -> bool:
        """Whether a person has returned the node to service after it was shown as out of service."""

    def instance_type(self) -> str:
        """The node's instance type as the scheduler knows it, "" where it does not."""

    def meaning(self, action: str) -> str:
        """What is done at the node for an action, as the rest of a sentence."""

    def close(self) -> None:
        """Close connections."""


def reason_action(reason: str) -> str | None:
    """The action that the reason at a scheduler's node asks for; None where the reason is about something else.

    Raises SpecError for a near miss, such as another case or an extra blank.
    """
    if reason in REASON_ACTIONS:
        return REASON_ACTIONS[reason]
    bare = "".join(reason.split()).lower()
    near = difflib.get_close_matches(bare, [name.lower() for name in REASON_ACTIONS], 1, 0.75)
    if near or bare.startswith("action:"):
        wanted = next((name for name in REASON_ACTIONS if [name.lower()] == near), " or ".join(REASON_ACTIONS))
        raise SpecError(
            f"reason {reason[:80]!r} asks for nothing: it has to be exactly {wanted}, upper and lower case included"
        )
    return None


def from_json(record: Mapping[str, Any]) -> Finding:
    """Inverse of `Finding.to_json`; unknown keys are ignored. Raises SpecError."""
    try:
        return Finding(**{name: str(record[name]) for name in Finding.__dataclass_fields__ if name in record})
    except TypeError as error:
        raise SpecError(f"finding cannot be read: {error}") from error
