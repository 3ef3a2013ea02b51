"""Findings about a node's health, and the labels that show them to tools and people.

Names of labels and their values are those of SageMaker HyperPod.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .errors import SpecError

PREFIX = "sagemaker.amazonaws.com/"
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
