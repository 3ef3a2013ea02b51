"""What happened to a job, in one sentence. Pure."""

from __future__ import annotations

from ...core.units import format_duration, format_rate, plural
from ..report import loss_text, throughput
from .run_record import RunRecord


def what_happened(record: RunRecord) -> str:
    """One sentence: how it ended, what it computed on how many nodes, what it lost, and how it went on."""
    view = record.view
    told = f"{view['name'] or record.job_id} {_done(record)}"
    return "; ".join(filter(None, [told, _losses(record), _ending(record)])) + "."


def _done(record: RunRecord) -> str:
    """What the job did, and on how many nodes."""
    view = record.view
    size = view["world_size"] or view["nodes_wanted"]
    nodes = f" on {plural(size, 'node')}" if size else ""
    if view["started_s"] is None and not view["step"]:
        return f"{'did not start' if record.over else 'has not started'}{nodes}"
    took = "" if view["started_s"] is None else format_duration(max(0.0, record.end_s - view["started_s"]))
    if not view["step"]:
        return f"{'ran' if record.over else 'has run'} for {took}{nodes}"
    told = f"{'trained' if record.over else 'has trained'} {plural(view['step'], 'step')}"
    told += f" in session {view['session_number']}" if view["session_number"] > 1 else ""
    told += "" if loss_text(view) == "-" else f" to a loss of {loss_text(view)}"
    return told + (f" in {took}" if took else "") + nodes


def _losses(record: RunRecord) -> str:
    lost = sum(record.lanes.losses.values())
    recovered = [one["recovery_s"] for one in record.incidents if one["recovery_s"] is not None]
    if not record.incident_count:
        failed = record.view["state"] in ("failed", "stopped")
        return "nothing disturbed it" if record.view["step"] and not failed else ""
    told = plural(record.incident_count, "incident") + (
        f", in which members were lost {lost} times" if lost > 1 else ""
    )
    told += ", in which a member was lost" if lost == 1 else ""
    if recovered:
        worst = format_duration(max(recovered))
        told += f"; training went on after {worst}" + (" at most" if len(recovered) > 1 else "")
    goodput = record.time.goodput
    return told + (f", goodput {100 * goodput:.1f} %" if goodput is not None else "")


def _ending(record: RunRecord) -> str:
    view = record.view
    state = view["state"]
    if state == "succeeded":
        return "it succeeded"
    if state in ("failed", "stopped"):
        error = view["error"]
        why = f"{error['type']}: {error['message']}" if error else view["reason"]
        return f"it {'failed' if state == 'failed' else 'was stopped'}{f': {why}' if why else ''}".rstrip(".")
    rate = throughput(view)
    now = f"it is {state}" + (f", {format_rate(rate, 'sample')}" if rate else "")
    return now + (f": {view['reason']}" if view["reason"] else "")
