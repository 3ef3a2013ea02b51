"""Defines Event (a fact that a process reports) and Command (a request to a job), and encodes both as JSON lines.

The sets of kinds are closed. An event is identified by ``(writer, seq)``: each writer counts its own from 1 without
gaps. `vocabulary.EVENTS` lists all kinds of events, for Python and TypeScript.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import vocabulary
from .errors import ProtocolError
from .people import asked_by
from .spec import HIDDEN

VERSION = 1
GATEWAY = "gateway"  # the writer of a deployment's events, and the place to which its replicas connect

# kind -> fields that must be present in `data`
EVENT_FIELDS = {
    kind: frozenset(name for name in fields if not name.endswith("?")) for kind, fields in vocabulary.EVENTS.items()
}

# kind -> fields that must be present in `data`
COMMAND_FIELDS: dict[str, frozenset[str]] = {
    "stop": frozenset({"reason"}),
    "scale": frozenset({"target"}),
    "fault": frozenset({"fault", "rank", "node"}),
    # something is wrong with the node: its members leave it at a step boundary
    "drain": frozenset({"node", "cause", "reason"}),
    # a log rule calls a rank broken; rank None means all ranks
    "blame": frozenset({"rank", "cause", "reason"}),
}

JOB_STATES = vocabulary.CHOICES["JobState"]
TERMINAL_STATES = frozenset({"succeeded", "failed", "stopped"})
NODE_STATES = vocabulary.CHOICES["NodeState"]


@dataclass(frozen=True, slots=True)
class FaultClass:
    """One kind of fault that can be injected: its possible targets (``aimed``), and a description for people."""

    aims: tuple[str, ...]
    sentence: str


AIMS = ("rank", "node", "coordinator", "supervisor")
# targets that are neither a rank nor a node: the field `target` of a fault names them
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
THROTTLE_LIMIT, THROTTLE_LIMIT_S = 100.0, 86_400.0  # how many times slower, for how long at most
# stages of a new replica until its first answer, timed from the decision to start it
REPLICA_STAGES = ("started", "loading", "loaded", "ready", "answered")

# fields that readers compute with: a record with another type there is none
_NUMBERS: dict[str, dict[str, frozenset[type]]] = {
    "step.committed": {
        "step": frozenset({int}),
        "loss": frozenset({int, float, type(None)}),
        "step_time_s": frozenset({int, float}),
        **dict.fromkeys(("samples", "world_size", "redone"), frozenset({int})),
    }
}

# a slow reader needs only the newest event of these kinds; events of all other kinds are never dropped
SAMPLE_KINDS = frozenset({"metric.logged"})
# kinds that may be dropped, and are then counted, while the disk is full (`storage/journal_writer.py`)
WAITING_SAMPLES = frozenset({"metric.logged", "nodes.sampled", "output.written"})


@dataclass(frozen=True, slots=True)
class _Entry:
    """``time_s`` is seconds since the Unix epoch on the writer's clock."""

    writer: str
    seq: int
    time_s: float
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Event(_Entry):
    """One fact."""

    __slots__ = ()


class Command(_Entry):
    """One request to a running job, identified like an event."""

    __slots__ = ()


def done(command: Command, ok: bool, reason: str) -> dict[str, Any]:
    """The data of `command.done`: whether the command was carried out, why or why not, and the person who asked."""
    identity = {"writer": command.writer, "seq": command.seq}
    by = asked_by(command.data)
    answer = {"command": identity, "kind": command.kind, "ok": ok, "reason": reason}
    return answer if by is None else answer | {"by": str(by)}


def encode(record: Event | Command) -> bytes:
    """Return the record as one line of JSON, newline included.

    Raises ProtocolError for an unknown kind and for values JSON cannot hold, NaN and infinity among them.
    """
    _check(record.kind, record.data, EVENT_FIELDS if isinstance(record, Event) else COMMAND_FIELDS)
    line = {"v": VERSION, **to_json(record), "data": _without_values(record.kind, record.data)}
    try:
        return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"{record.kind} holds a value that JSON cannot: {error}") from error


def decode_event(line: bytes | str) -> Event:
    """Inverse of `encode`; raises ProtocolError for anything else than a complete event of a known kind."""
    return Event(*_decode(line, EVENT_FIELDS))


def decode_command(line: bytes | str) -> Command:
    """Inverse of `encode`; raises ProtocolError for anything else than a complete command of a known kind."""
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


def _decode(line: bytes | str, known: Mapping[str, frozenset[str]]) -> tuple[str, int, float, str, Mapping[str, Any]]:
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
    _check(kind, data, known)
    return writer, seq, float(time_s), kind, _without_values(kind, data)


def _without_values(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the values of a job's environment variables, which journals of earlier versions contain."""
    spec = data.get("spec") if kind == "job.submitted" else None
    if not isinstance(spec, Mapping) or not isinstance(spec.get("env"), Mapping):
        return dict(data)
    return {**data, "spec": {**spec, "env": dict.fromkeys(spec["env"], HIDDEN)}}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check(kind: str, data: Mapping[str, Any], known: Mapping[str, frozenset[str]]) -> None:
    required = known.get(kind)
    if required is None:
        raise ProtocolError(f"unknown kind {kind!r}; expected one of {', '.join(sorted(known))}")
    if missing := required - data.keys():
        raise ProtocolError(f"{kind} lacks {', '.join(sorted(missing))}")
    for name, types in _NUMBERS.get(kind, {}).items():
        if type(data[name]) not in types:
            raise ProtocolError(f"{name} of {kind} is {data[name]!r:.60}, expected a number")
