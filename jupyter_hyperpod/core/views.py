"""Folds events into the views that people see.

Folding is idempotent (an event already seen changes nothing) and monotonic (an older generation never
regresses a newer view). `src/model/fold.ts` is the twin of this file; golden journals keep them equal,
so the order and the names of fields matter here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import kept
from .events import TERMINAL_STATES, Event
from .incidents import fold_stage
from .kept import append, append_output, bound_names, explain, labelled, put, put_node

FOLD = 10  # a snapshot of another version of this fold is not used: count up with every change of what it returns
HISTORY_POINTS = 512
DECISIONS_KEPT = 50
GENERATIONS_KEPT = 200
WARNINGS_KEPT = 20
SAME_WARNING_S = 60  # within which a sentence that several ranks say counts once
FENCED_KEPT = 200
REPLICAS_KEPT = 50
LOADS_KEPT = 64
FINDINGS_KEPT = 50
RULES_KEPT = 256
SESSIONS_KEPT = 100

# fields that a list of jobs does not need
BULK = frozenset({"output", "history", "history_stride", "commits", "decisions", "fenced", "seen"})
# `apply` raises one of these for an event whose fields have the wrong type
UNFOLDABLE = (LookupError, TypeError, ValueError, AttributeError)

View = dict[str, Any]


def new_job_view(job_id: str) -> View:
    """Return the view of a job before its first event."""
    return {
        "id": job_id,
        "name": "",
        "state": "pending",
        "reason": "",
        "waits": "",
        "phase": "",
        "backend": "",
        "nodes_wanted": 0,
        "minimum": 0,
        "maximum": 0,
        "spares_wanted": 0,
        "priority": 0,
        "queue": "",
        "origin": {},
        "labels": {"tags": [], "note": "", "archived": False, "by": "", "time_s": None},
        "submitted_s": None,
        "started_s": None,
        "ended_s": None,
        "generation": 0,
        "target": 0,
        "members": [],
        "spares": [],
        "world_size": 0,
        "generations": [],
        "session": None,
        "session_number": 0,
        "sessions": [],
        "step": 0,
        "loss": None,
        **kept.unpaced(),
        "samples": 0,
        "redone": 0,
        "metrics": {},
        "history": [],
        "history_stride": 1,
        "incidents": [],
        "decisions": [],
        "warnings": [],
        "output": [],
        "error": None,
        "checkpoint": None,
        "deployment": None,
        "loads": [],
        "rules": [],
        "digest": None,
        "fenced": {},
        "updated_s": None,
        "seen": {},
    }


def new_cluster_view() -> View:
    """Return the view of a cluster before its first event."""
    known: View = {"state": "stopped", "reason": "", "pid": None, "queues": {}, "idle": None, "nodes": []}
    return known | {"health": {}, "incidents": [], "decisions": [], "warnings": [], "updated_s": None, "seen": {}}


def summary(view: View) -> View:
    """Return a job's view for a list of many: without `BULK`, sharing the rest with the given view."""
    return {name: value for name, value in view.items() if name not in BULK}


def fold_all(view: View, events: Iterable[Event]) -> View:
    """Return the view after all `events`; the given view, copied once, does not change."""
    after = copy.deepcopy(view)
    for event in events:
        apply(after, event)
    return after


def apply(view: View, event: Event) -> None:
    """Fold `event` into `view` in place: for followers that own their view."""
    if event.seq <= view["seen"].get(event.writer, 0):
        return
    view["seen"][event.writer] = event.seq
    handler = _HANDLERS.get(event.kind)
    if handler is not None:
        handler(view, event)
    view["updated_s"] = max(view["updated_s"] or event.time_s, event.time_s)


def _job_submitted(view: View, event: Event) -> None:
    spec = event.data["spec"]
    elastic = spec.get("elastic")
    view["name"] = spec["name"]
    view["backend"] = spec["backend"]
    view["nodes_wanted"] = spec["nodes"]
    view["target"] = view["target"] or spec["nodes"]
    fewest = elastic["minimum"] if elastic else 1
    view["minimum"] = (spec.get("serve") or {}).get("minimum", fewest)  # a deployment may have none
    view["maximum"] = elastic["maximum"] if elastic else spec["nodes"]
    view["spares_wanted"] = spec.get("spares", 0)
    view["priority"] = spec.get("priority", 0)
    view["queue"] = spec.get("queue", "")
    view["origin"] = dict(spec.get("origin", {}))
    view["submitted_s"] = event.time_s


def _job_labelled(view: View, event: Event) -> None:
    view["labels"] = labelled(view["labels"], event.data, event.time_s)


def _job_state(view: View, event: Event) -> None:
    if view["state"] in TERMINAL_STATES:
        return
    state = event.data["state"]
    view["state"] = state
    view["reason"] = event.data["reason"]
    if state == "running" and view["started_s"] is None:
        view["started_s"] = event.time_s
    if state == "succeeded":
        view["error"] = None
    if state in TERMINAL_STATES:
        view["ended_s"] = event.time_s
    explain(view)


def _phase_changed(view: View, event: Event) -> None:
    view["phase"] = event.data["phase"]


def _generation_formed(view: View, event: Event) -> None:
    data = event.data
    if data["generation"] < view["generation"]:
        return
    if data["generation"] > view["generation"]:
        view["error"] = None  # the job continues: the loss of a member had caused this error
    if data["generation"] and not view["generation"]:
        view["waits"] = ""  # that was about the first nodes
    view["generation"] = data["generation"]
    view["target"] = data["target"]
    view["members"] = [dict(member) for member in data["members"]]
    view["spares"] = [dict(spare) for spare in data["spares"]]
    view["world_size"] = len(data["members"])
    explain(view, data["reason"])
    present = {member.get("member") for member in (*data["members"], *data["spares"])}
    view["loads"] = [load for load in view["loads"] if load["state"] != "loading" or load["member"] in present]
    formed = {
        "generation": data["generation"],
        "time_s": event.time_s,
        "nodes": [member.get("node", "") for member in data["members"]],
        "spares": [spare.get("node", "") for spare in data["spares"]],
        "reason": data["reason"],
    }
    append(view["generations"], formed, GENERATIONS_KEPT)
    bound_names(view["generations"])


def _member_lost(view: View, event: Event) -> None:
    view["fenced"][event.data["member"]] = event.time_s
    view["loads"] = [load for load in view["loads"] if load["member"] != event.data["member"]]
    for member in list(view["fenced"])[:-FENCED_KEPT]:
        del view["fenced"][member]


def is_fenced(fenced: Mapping[str, float], event: Event) -> bool:
    """Whether a worker wrote `event` after it was lost; ``fenced``: Unix time of each loss, by member."""
    name = event.writer.rpartition(".")[0]
    return name.startswith("worker-") and event.time_s > fenced.get(name.removeprefix("worker-"), math.inf)


def _session_opened(view: View, event: Event) -> None:
    number = event.data.get("number", 1)
    if number < view["session_number"]:
        return  # a cell that was started again goes through its earlier sessions
    view["session"] = dict(event.data)
    _enter_session(view, number)


def _session_closed(view: View, event: Event) -> None:
    view["digest"] = event.data["digest"]


def _enter_session(view: View, number: int) -> None:
    """Begin to show a session of the cell: its steps and losses; of an earlier one its end is kept."""
    if number <= view["session_number"]:
        return
    if view["step"]:
        ended = {"number": view["session_number"], "step": view["step"], "loss": view["loss"]}
        append(view["sessions"], ended, SESSIONS_KEPT)
    view["session_number"] = number
    view.update({"step": 0, "loss": None, **kept.unpaced(), "history": [], "history_stride": 1})


def _step_committed(view: View, event: Event) -> None:
    data = event.data
    number = data.get("session", 1)
    if number < view["session_number"] or is_fenced(view["fenced"], event):
        return
    _enter_session(view, number)
    if data["step"] <= view["step"]:
        return
    view["step"] = data["step"]
    view["loss"] = data["loss"]
    view["samples"] += data["samples"]
    kept.put_commit(view, data["step"], event.time_s)
    if "micro_batches" in data and view["session"]:
        batch = data["micro_batches"] * view["session"]["micro_batch"]
        view["session"] = view["session"] | {"global_batch": batch, "micro_batches": data["micro_batches"]}
    view["redone"] += data["redone"]
    if data["step"] % view["history_stride"] == 0 or data["step"] == 1:
        view["history"].append([data["step"], data["loss"], event.time_s, data["world_size"]])
    if len(view["history"]) > HISTORY_POINTS:
        view["history_stride"] *= 2
        stride = view["history_stride"]
        view["history"] = [point for point in view["history"] if point[0] % stride == 0 or point[0] == 1]


def _checkpoint_saved(view: View, event: Event) -> None:
    if view["checkpoint"] is not None and event.time_s < view["checkpoint"]["time_s"]:
        return
    view["checkpoint"] = {name: event.data[name] for name in ("step", "path", "bytes", "took_s", "paused_s")}
    view["checkpoint"]["time_s"] = event.time_s


def _model_loading(view: View, event: Event) -> None:
    if is_fenced(view["fenced"], event):
        return
    put(view["loads"], dict(event.data) | {"time_s": event.time_s}, ("member",), LOADS_KEPT)


def _deployment_opened(view: View, event: Event) -> None:
    replicas = view["deployment"]["replicas"] if view["deployment"] else []
    where = {name: event.data.get(name, "") for name in ("host", "loopback")}
    told = {name: event.data[name] for name in ("url", "model", "task")}
    view["deployment"] = told | where | {"replicas": replicas}


def _replica_stage(view: View, event: Event) -> None:
    data = event.data
    if view["deployment"] is None:
        view["deployment"] = dict.fromkeys(("url", "model", "task", "host", "loopback"), "") | {"replicas": []}
    replicas = view["deployment"]["replicas"]
    replica = next((known for known in replicas if known["replica"] == data["replica"]), None)
    if replica is None:
        replica = {"replica": data["replica"], "node": data["node"], "stages": []}
        append(replicas, replica, REPLICAS_KEPT)
    replica["stages"].append({"stage": data["stage"], "took_s": data["took_s"], "time_s": event.time_s})


def _metric_logged(view: View, event: Event) -> None:
    view["metrics"].update(event.data["values"])


def _incident_stage(view: View, event: Event) -> None:
    fold_stage(view["incidents"], event)


def _decision_made(view: View, event: Event) -> None:
    kept.put_decision(view, event.data, event.time_s, DECISIONS_KEPT)


def _output_written(view: View, event: Event) -> None:
    data = event.data
    if "begins" in data:
        return
    written = {key: data[key] for key in ("member", "node", "rank", "stream", "text")} | {"time_s": event.time_s}
    append_output(view["output"], written)


def _user_error(view: View, event: Event) -> None:
    if view["error"] is None:
        view["error"] = dict(event.data)


def _warning_raised(view: View, event: Event) -> None:
    text = event.data["text"]
    if all(w["text"] != text or abs(event.time_s - (w["time_s"] or 0)) > SAME_WARNING_S for w in view["warnings"]):
        append(view["warnings"], {"time_s": event.time_s, "text": text}, WARNINGS_KEPT)


def _cluster_state(view: View, event: Event) -> None:
    view["state"] = event.data["state"]
    view["reason"] = event.data["reason"]
    view["pid"] = event.data["pid"]
    view["queues"] = dict(event.data.get("queues", view["queues"]))
    if event.data["state"] != "running":  # a supervisor that says so once more may have been idle before
        since_s = view["idle"]["since_s"] if view["idle"] else event.time_s
        view["idle"] = {"since_s": since_s, "ends_s": event.time_s} if event.data.get("idle") else None
    if event.data["state"] == "stopped":
        gone = {node["node"] for node in view["nodes"]}
        view["health"] = {node: health for node, health in view["health"].items() if node not in gone}
    if event.data["state"] in ("starting", "stopped"):
        view["nodes"] = []


def _cluster_idle(view: View, event: Event) -> None:
    since_s, ends_s = event.data["since_s"], event.data["ends_s"]
    view["idle"] = None if since_s is None or ends_s is None else {"since_s": since_s, "ends_s": ends_s}


def _node_state(view: View, event: Event) -> None:
    put_node(view["nodes"], dict(event.data), event.time_s)


def _health(view: View, node: str) -> View:
    unknown = {"action": "watch", "fault": "", "reason": "", "labels": {}, "recovery": "Automatic", "devices": {}}
    found: View = view["health"].setdefault(
        node, unknown | {"boot": "", "findings": [], "history": [], "remedies": [], "since_s": None}
    )
    return found


def _node_findings(view: View, event: Event) -> None:
    fresh = [dict(finding) | {"time_s": event.time_s} for finding in event.data["findings"]]
    probes = {finding["probe"] for finding in fresh}
    for node in event.data["nodes"]:
        health = _health(view, node)
        health["findings"] = [finding for finding in health["findings"] if finding["probe"] not in probes] + fresh
        health["history"] += [finding for finding in fresh if finding["outcome"] == "fail"]
        del health["history"][:-FINDINGS_KEPT]


def _node_health(view: View, event: Event) -> None:
    data = event.data
    health = _health(view, data["node"])
    if data["action"] != health["action"]:
        health["since_s"] = event.time_s
        remedy = {"time_s": event.time_s, "action": data["action"], "fault": data["fault"], "reason": data["reason"]}
        append(health["remedies"], remedy, FINDINGS_KEPT)
    for name in ("action", "fault", "reason", "labels", "recovery"):
        health[name] = data[name]
    for name in ("devices", "boot"):  # only the machine itself knows them
        health[name] = data[name] or health[name]


def _rule_state(view: View, event: Event) -> None:
    put(view["rules"], dict(event.data) | {"time_s": event.time_s}, ("rule", "rank"), RULES_KEPT)


_HANDLERS: dict[str, Callable[[View, Event], None]] = {
    "job.submitted": _job_submitted,
    "job.labelled": _job_labelled,
    "job.state": _job_state,
    "phase.changed": _phase_changed,
    "generation.formed": _generation_formed,
    "member.lost": _member_lost,
    "session.opened": _session_opened,
    "session.closed": _session_closed,
    "step.committed": _step_committed,
    "checkpoint.saved": _checkpoint_saved,
    "model.loading": _model_loading,
    "deployment.opened": _deployment_opened,
    "replica.stage": _replica_stage,
    "metric.logged": _metric_logged,
    "incident.stage": _incident_stage,
    "decision.made": _decision_made,
    "output.written": _output_written,
    "user.error": _user_error,
    "warning.raised": _warning_raised,
    "cluster.state": _cluster_state,
    "cluster.idle": _cluster_idle,
    "node.state": _node_state,
    "node.findings": _node_findings,
    "node.health": _node_health,
    "rule.state": _rule_state,
}
