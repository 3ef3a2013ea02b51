"""Facts go up as Events, requests go down as Commands. Both sets are closed; both travel as one JSON line.

An event is identified by ``(writer, seq)``: each writer counts its own from 1 without gaps.
`EVENT_FIELDS` is the whole vocabulary; the TypeScript twin (`src/model/events.ts`) is checked against it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ProtocolError

VERSION = 1

# kind -> fields that must be present in `data`
EVENT_FIELDS: dict[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        # written by control, when a job is submitted
        "job.submitted": "id spec",
        # written by the coordinator (pending -> running <-> recovering -> succeeded | failed | stopped)
        "job.state": "state reason",
        "member.joined": "member node pid host",
        "member.ready": "member node",
        "member.lost": "member node rank cause detail",
        "generation.formed": "generation members spares target reason",
        "session.opened": "total_steps global_batch micro_batch micro_batches parameters state_bytes",
        "incident.stage": "incident stage cause node rank rung text",
        "decision.made": "policy value reason",
        "fault.injected": "fault node rank member",
        "command.done": "command kind ok reason",
        "session.closed": "step digest",
        "checkpoint.loaded": "step path took_s",
        "checkpoint.refused": "path reason",
        # written by workers
        "step.committed": "step generation loss loss_hex step_time_s samples world_size assignment redone",
        "metric.logged": "step values",
        "checkpoint.saved": "step path bytes took_s paused_s",
        "model.loading": "member node state url bytes_done bytes_total elapsed_s first_layer_s",
        # written by agents
        "output.written": "member node rank stream text",
        "user.error": "member node rank type message traceback",
        # written by the gateway of a deployment
        "deployment.opened": "url model task",
        "replica.stage": "replica node stage took_s text",
        # written by whoever notices
        "warning.raised": "text",
        # what a scheduler made of one node that it was asked for, written by the supervisor
        "allocation.changed": "scheduler element part state node reason",
        # cluster journal, written by the supervisor
        "cluster.state": "state reason nodes pid",
        "node.state": "node state reason spare slots used jobs pid incarnation",
        # cluster journal, written by the health agent of a machine, and by who carries out remedies
        "node.findings": "nodes findings",
        "node.health": "node action fault reason labels recovery devices boot",
        # job's journal, written by its log watcher
        "rule.state": "rule state member rank value text",
    }.items()
}

# kind -> fields that must be present in `data`
COMMAND_FIELDS: dict[str, frozenset[str]] = {
    "stop": frozenset({"reason"}),
    "scale": frozenset({"target"}),
    "fault": frozenset({"fault", "rank", "node"}),
    # members on a node are to leave it at a step boundary, because of what was found there
    "drain": frozenset({"node", "cause", "reason"}),
    # a rule about the output of a rank, or of all where it is None, calls it broken
    "blame": frozenset({"rank", "cause", "reason"}),
}

JOB_STATES = ("pending", "running", "recovering", "succeeded", "failed", "stopped")
TERMINAL_STATES = frozenset({"succeeded", "failed", "stopped"})
NODE_STATES = ("starting", "idle", "busy", "drained", "lost", "stopped")
RULE_STATES = ("WAITING", "HEALTHY", "SLOW", "HANGING", "FAULTED")


@dataclass(frozen=True, slots=True)
class FaultClass:
    """One kind of fault that can be injected: whom it may be ``aimed`` at, and what it does, for people."""

    aims: tuple[str, ...]
    sentence: str


AIMS = ("rank", "node", "coordinator", "supervisor")
# aims that are neither a rank nor a node: the field `target` of a fault names them
TARGETS = AIMS[2:]
FAULTS: dict[str, FaultClass] = {
    "kill": FaultClass(AIMS, "SIGKILL: the process, or every process of the node, is gone at once"),
    "hang": FaultClass(AIMS, "SIGSTOP: it stays, but does nothing and answers nobody"),
    "throttle": FaultClass(("rank",), "it gets only a part of its CPU time for a while: a straggler"),
    "partition": FaultClass(("node",), "the node goes on, but its network reaches nobody"),
    "preempt": FaultClass(("rank", "node"), "SIGUSR1: the node is to be given back within the job's grace time"),
    "nan": FaultClass(("rank",), "the loss of its next micro-batch, and so the gradient, is not a number"),
    "spike": FaultClass(("rank",), "the loss of its next micro-batch, and so the gradient, is a thousandfold"),
    "flip-gradient": FaultClass(("rank",), "one random bit of its next micro-batch's gradient is flipped"),
    "flip-parameter": FaultClass(("rank",), "one random bit of its parameters is flipped"),
    "flip-optimizer": FaultClass(("rank",), "one random bit of its optimizer's state is flipped"),
    "exception": FaultClass(("rank",), "the cell raises an exception there: an error of the program, not retried"),
}
# the way of a new replica to its first answer, timed from the decision that it is for
REPLICA_STAGES = ("started", "loading", "loaded", "ready", "answered")
STAGES = ("detected", "diagnosed", "fenced", "repaired", "replaced", "rejoined", "resumed")

# kinds of which only the newest matters to a slow reader; all others are facts and never dropped
SAMPLE_KINDS = frozenset({"metric.logged"})


@dataclass(frozen=True, slots=True)
class Event:
    """One fact. ``time_s`` is seconds since the Unix epoch on the writer's clock."""

    writer: str
    seq: int
    time_s: float
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """One request to a running job, identified like an event."""

    writer: str
    seq: int
    time_s: float
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


def encode(record: Event | Command) -> bytes:
    """Return the record as one line of JSON, newline included.

    Raises ProtocolError for an unknown kind and for values JSON cannot hold, NaN and infinity among them.
    """
    _check(record.kind, record.data, EVENT_FIELDS if isinstance(record, Event) else COMMAND_FIELDS)
    line = {
        "v": VERSION,
        "writer": record.writer,
        "seq": record.seq,
        "time_s": record.time_s,
        "kind": record.kind,
        "data": dict(record.data),
    }
    try:
        return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"{record.kind} holds a value that JSON cannot: {error}") from error


def decode_event(line: bytes | str) -> Event:
    """Inverse of `encode`; raises ProtocolError for anything that is not a whole, known event."""
    return Event(*_decode(line, EVENT_FIELDS))


def decode_command(line: bytes | str) -> Command:
    """Inverse of `encode`; raises ProtocolError for anything that is not a whole, known command."""
    return Command(*_decode(line, COMMAND_FIELDS))


def to_json(record: Event | Command) -> dict[str, Any]:
    """Return the record as the dictionary that travels to browsers and scripts."""
    return {
        "writer": record.writer,
        "seq": record.seq,
        "time_s": record.time_s,
        "kind": record.kind,
        "data": dict(record.data),
    }


def _decode(
    line: bytes | str, vocabulary: Mapping[str, frozenset[str]]
) -> tuple[str, int, float, str, Mapping[str, Any]]:
    try:
        raw = json.loads(line, parse_constant=_refuse_constant)
        writer, seq, time_s, kind, data = (raw[key] for key in ("writer", "seq", "time_s", "kind", "data"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a journal line: {error!r} in {line[:120]!r}") from error
    timed = type(time_s) in (int, float) and math.isfinite(time_s)
    if not (isinstance(writer, str) and type(seq) is int and seq > 0 and timed):
        raise ProtocolError(f"journal line has a malformed identity: {line[:120]!r}")
    if not (isinstance(kind, str) and isinstance(data, dict)):
        raise ProtocolError(f"journal line has a malformed kind or data: {line[:120]!r}")
    _check(kind, data, vocabulary)
    return writer, seq, float(time_s), kind, data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check(kind: str, data: Mapping[str, Any], vocabulary: Mapping[str, frozenset[str]]) -> None:
    required = vocabulary.get(kind)
    if required is None:
        raise ProtocolError(f"unknown kind {kind!r}; expected one of {', '.join(sorted(vocabulary))}")
    if missing := required - data.keys():
        raise ProtocolError(f"{kind} lacks {', '.join(sorted(missing))}")
