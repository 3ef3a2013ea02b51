"""Turns events into sentences, one line per event, for the CLI and the magics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.events import Event
from ..core.incidents import unnoticed_since_s
from ..core.units import format_bytes, format_duration, plural
from ..core.vocabulary import NODE_WORDS
from .report import load_sentence
from .text_tables import clean


def event_sentence(event: Event) -> str:
    """Return an event as one line of prose; sentences written by policies and agents are shown verbatim."""
    data = event.data
    try:
        writer = _SENTENCES.get(event.kind)
        return clean(writer(data) + _delay(event)) if writer else clean(f"{data}")
    except (KeyError, TypeError, ValueError, AttributeError):
        return clean(f"{dict(data)}")


def _delay(event: Event) -> str:
    """How long a fault went unnoticed, where the event has its time."""
    since_s = unnoticed_since_s(event)
    return "" if since_s is None else f", {format_duration(event.time_s - since_s)} after the fault"


def _session_sentence(data: Mapping[str, Any]) -> str:
    steps = f" of {plural(data['total_steps'], 'step')}" if data["total_steps"] else ""  # none are known of epochs
    return (
        f"session{steps}, global batch {data['global_batch']}, "
        f"{data['parameters']:,} parameters, {format_bytes(data['state_bytes'])} of state"
    )


def _step_sentence(data: Mapping[str, Any]) -> str:
    again = f", {plural(data['redone'], 'micro-batch')} computed again" if data["redone"] else ""
    loss = "nan" if data["loss"] is None else f"{data['loss']:.4g}"
    took = format_duration(data["step_time_s"])
    left_out = f"; {data['skipped']}" if data.get("skipped") else ""
    where = plural(data["world_size"], "node")
    return f"step {data['step']} loss {loss} on {where}, {took} inside the step{again}{left_out}"


def _labels_sentence(data: Mapping[str, Any]) -> str:
    told = [f"tagged {', '.join(data['add'])}"] if data["add"] else []
    told += [f"no longer tagged {', '.join(data['remove'])}"] if data["remove"] else []
    if "note" in data:
        told.append(f"note: {data['note']}" if data["note"] else "the note was removed")
    if "archived" in data:
        told.append("archived" if data["archived"] else "taken out of the archive")
    return f"{'; '.join(told)}, by {data['by']}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def _begun(printed: Mapping[str, Any]) -> str:
    """In words, that a cell of a notebook begins or has ended; "" for output."""
    if "begins" not in printed:
        return ""
    return f"code cell {printed['begins']} begins" if printed["begins"] else "the last cell has ended"


def _aim(injected: Mapping[str, Any]) -> str:
    if injected.get("target"):
        return f"the {injected['target']}"
    if injected["rank"] is not None:
        return f"rank {injected['rank']} on {injected['node']}"
    return str(injected["node"] or injected["member"])


_SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "job.submitted": lambda d: f"submitted as {d['id']}, {plural(d['spec']['nodes'], 'node')} asked for",
    "job.state": lambda d: f"{d['state']}" + (f": {d['reason']}" if d["reason"] else ""),
    "job.labelled": _labels_sentence,
    "phase.changed": lambda d: f"{d['phase']}: {d['reason']}",
    "member.joined": lambda d: f"{d['member']} on {d['node']} joined (pid {d['pid']})",
    "member.ready": lambda d: f"{d['member']} on {d['node']} waits at its session, ready to take a place",
    "member.lost": lambda d: (
        f"{d['member']} on {d['node']} lost: {d['cause']}" + (f", {d['detail']}" if d["detail"] else "")
    ),
    "generation.formed": lambda d: (
        f"generation {d['generation']}: {plural(len(d['members']), 'node')}, {len(d['spares'])} spare; {d['reason']}"
    ),
    "session.opened": _session_sentence,
    "incident.stage": lambda d: f"{d['stage']}: {d['text']}",
    "decision.made": lambda d: f"{d['policy']}: {d['reason']}",
    "fault.injected": lambda d: f"{d['fault']} injected into {_aim(d)}",
    "allocation.changed": lambda d: f"{d['scheduler']} {d['element']} {d['state']} {d['node']} {d['reason']}".rstrip(),
    "command.done": lambda d: (
        f"{d['kind']} {'done' if d['ok'] else 'refused'}"
        + (f", asked by {d['by']}" if d.get("by") else "")
        + (f": {d['reason']}" if d["reason"] else "")
    ),
    "checkpoint.saved": lambda d: (
        f"checkpoint of step {d['step']}, {format_bytes(d['bytes'])}, written in {format_duration(d['took_s'])} "
        f"(training stood still for {format_duration(d['paused_s'])}) to {d['path']}"
    ),
    "model.loading": load_sentence,
    "deployment.opened": lambda d: (
        f"{d['model']} is served at {d['url']}" + (f" on {d['host']}" if d.get("host") else "")
    ),
    "replica.stage": lambda d: str(d["text"]),
    "checkpoint.loaded": lambda d: f"step {d['step']} taken up in {format_duration(d['took_s'])} from {d['path']}",
    "checkpoint.refused": lambda d: f"{d['path']} is not loaded: {d['reason']}",
    "session.closed": lambda d: f"session closed after step {d['step']}, state {str(d['digest'])[:16]}…",
    "step.committed": _step_sentence,
    "nodes.sampled": lambda d: f"{plural(len(d['nodes']), 'node')} said what they use",
    "metric.logged": lambda d: f"step {d['step']}: {_values(d['values'])}",
    "output.written": lambda d: (
        f"{'rank ' + str(d['rank']) if d['rank'] is not None else d['node']}: {_begun(d) or d['text'].rstrip()}"
    ),
    "user.error": lambda d: f"{d['type']}: {d['message']}",
    "warning.raised": lambda d: str(d["text"]),
    "cluster.state": lambda d: f"{d['state']}" + (f": {d['reason']}" if d["reason"] else ""),
    "cluster.idle": lambda d: ("in use: " if d["ends_s"] is None else "idle: ") + d["reason"],
    "node.findings": lambda d: (
        f"{', '.join(d['nodes'])}: " + "; ".join(f"{f['probe']} {f['outcome']}: {f['text']}" for f in d["findings"])
    ),
    "node.health": lambda d: f"{d['node']} {d['action']}: {d['reason']}",
    "rule.state": lambda d: f"{d['rule']} {d['state']}: {d['text']}",
    "node.state": lambda d: (
        f"{d['node']} {NODE_WORDS.get(d['state'], d['state'])}" + (f": {d['reason']}" if d["reason"] else "")
    ),
}
