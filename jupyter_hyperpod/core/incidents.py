"""Folds the stages of an incident into what people see, and times its recovery. Recoveries are timed nowhere else.

An incident begins with the fault and ends when training continues. Its first stage says in ``since_s`` (seconds since
the Unix epoch on its writer's clock) when the fault was: the time of the injection, or else of the last sign of life.
Journals of earlier versions lack it: their incidents begin with the first stage, and ``detection_s`` is None.
`src/model/fold.ts` is the twin of this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .events import Event

INCIDENTS_KEPT = 200
# how training got its state and its place back, by the rung of recovery
WAYS = (
    "by the other members", "by a spare", "by a new process", "by another node", "from a checkpoint",
    "from the beginning",
)  # fmt: skip
OTHER_WAY = "in another way"  # a rung that only a later version knows
# causes that are no words, as `health.BY_HAND`; `src/components/incidents.tsx` has them, too
CAUSES = {"ByHand": "drained by hand"}
LATEST_S = 1e12  # seconds since the Unix epoch; a larger number cannot be a time

Incident = dict[str, Any]


def fold_stage(incidents: list[Incident], event: Event) -> None:
    """Fold one ``incident.stage`` into the list, in place.

    ``started_s``, ``resumed_s``: times; ``detection_s``: from the fault to the first stage; ``recovery_s``: from the
    fault to the commit after it. Each stage took ``took_s`` from the one before it, the first ``detection_s``.
    """
    data = event.data
    incident = next((known for known in incidents if known["incident"] == data["incident"]), None)
    if incident is None:
        incident = {
            "incident": data["incident"],
            "cause": data["cause"],
            "node": data["node"],
            "rank": data["rank"],
            "rung": data["rung"],
            "started_s": event.time_s,
            "detection_s": None,
            "resumed_s": None,
            "recovery_s": None,
            "stages": [],
        }
        incidents.append(incident)
        del incidents[:-INCIDENTS_KEPT]
    incident["cause"] = data["cause"] or incident["cause"]
    incident["rung"] = incident["rung"] if data["rung"] is None else data["rung"]
    since_s = unnoticed_since_s(event)
    if since_s is not None and incident["detection_s"] is None:
        incident["started_s"] = since_s
        incident["detection_s"] = event.time_s - since_s
    stages = incident["stages"]
    took_s = max(0.0, event.time_s - stages[-1]["time_s"]) if stages else incident["detection_s"]
    stages.append({"stage": data["stage"], "time_s": event.time_s, "took_s": took_s, "text": data["text"]})
    if data["stage"] == "resumed":
        incident["resumed_s"] = event.time_s
    if incident["resumed_s"] is not None:
        incident["recovery_s"] = max(0.0, incident["resumed_s"] - incident["started_s"])


def way(rung: int | None) -> str:
    """How an incident was mended, in words; '-' before that is known."""
    if rung is None:
        return "-"
    return WAYS[rung] if 0 <= rung < len(WAYS) else OTHER_WAY


def cause_text(cause: str) -> str:
    """What an incident was about, in words."""
    return CAUSES.get(cause, cause)


def fold_stages(events: Iterable[Event]) -> list[Incident]:
    """The incidents of a journal, the newest `INCIDENTS_KEPT` of them."""
    incidents: list[Incident] = []
    for event in events:
        if event.kind == "incident.stage":
            fold_stage(incidents, event)
    return incidents


def unnoticed_since_s(event: Event) -> float | None:
    """The time of the fault according to a stage, never later than the stage itself; None where the stage lacks it."""
    since_s = event.data.get("since_s") if event.kind == "incident.stage" else None
    if isinstance(since_s, bool) or not isinstance(since_s, int | float) or not abs(since_s) < LATEST_S:
        return None
    return min(float(since_s), event.time_s)
